from kvdiag_probes.budget import Budget


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
