import pytest

from kvdiag.errors import UsageError
from kvdiag_probes.budget import Budget, current


def test_the_average_never_exceeds_the_budget() -> None:
    now, moved = [0.0], 0

    def sleep(seconds: float) -> None:
        now[0] += seconds

    budget = Budget(1000.0, clock=lambda: now[0], sleep=sleep)
    for burst, took in ((500, 0.1), (10, 5.0), (20_000, 1.0)):
        now[0] += took
        moved += burst
        budget.spend(burst)
        assert moved / now[0] <= 1000.0 + 1e-9
    assert budget.waited_s > 0


def test_without_a_bound_nothing_waits() -> None:
    budget = Budget(None, sleep=lambda _: exit("slept"))
    budget.spend(1 << 60)
    assert budget.waited_s == 0


def test_what_goes_at_full_speed_at_a_time_is_a_tenth_of_a_second_s_worth() -> None:
    budget = Budget(1e6)
    assert [budget.burst(size, 64) for size in (1, 10_000, 50_000, 1 << 20)] == [64, 10, 2, 1]
    assert Budget(None).burst(1 << 30, 64) == 64


def test_a_quiet_time_is_made_up_for_by_one_second_at_most() -> None:
    now, slept = [0.0], list[float]()
    budget = Budget(1000.0, clock=lambda: now[0], sleep=slept.append)
    now[0] = 3600.0
    budget.spend(1500)
    assert slept == [0.5]


def test_a_long_rest_keeps_what_would_be_freed_as_idle() -> None:
    now, slept, kept = [0.0], list[float](), list[int]()
    Budget(1000.0, clock=lambda: now[0], sleep=slept.append).spend(2500, lambda: kept.append(len(slept)))
    assert (slept, kept) == ([1.0, 1.0, 0.5], [1, 2])


def test_a_rest_that_nobody_would_sit_out_is_refused() -> None:
    with pytest.raises(
        UsageError, match=r"--budget: 1 B/s would have 65536 bytes, .* 65536 s of rest: give 1092B/s or more"
    ):
        Budget(1.0, clock=lambda: 0.0, sleep=lambda _: exit("slept")).spend(1 << 16)


def test_a_budget_is_in_force_in_its_block_only() -> None:
    budget = Budget(1.0)
    with budget.in_force():
        assert current() is budget
    assert not current().limited
