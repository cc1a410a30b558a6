import struct
from collections.abc import Callable

import pytest

from kvdiag.errors import InputError, UnavailableError
from kvdiag_probes import pattern
from kvdiag_probes.control.messages import PassRequest
from kvdiag_probes.control.passes import PassRunner
from kvdiag_probes.datapath import Operation, Pass, Plan

SIZE, FLAG_AT = 4096, 8192


class Prepared:
    def __init__(self, run: Callable[[], Pass]) -> None:
        self.run, self.closed = run, False

    def close(self) -> None:
        self.closed = True


class Fixture:
    def __init__(self, run: Callable[[], Pass] = lambda: Pass(0.25)) -> None:
        self.memory = memoryview(bytearray(FLAG_AT + 64))
        self.made: list[tuple[Plan, Prepared]] = []
        self.passes = PassRunner(lambda: self.memory, lambda plan: self.prepare(plan, run))

    def prepare(self, plan: Plan, run: Callable[[], Pass]) -> Prepared:
        self.made.append((plan, Prepared(run)))
        return self.made[-1][1]

    def raise_flag(self, value: int) -> None:
        struct.pack_into("<Q", self.memory, FLAG_AT, value)


def request(flag: int = 7, watch: bool = False, timeout_s: float = 5.0, slots: int = 1) -> PassRequest:
    return PassRequest(
        flag=flag, flag_offset=FLAG_AT, size=SIZE, slots=slots, timeout_s=timeout_s, watch=watch, seed=flag
    )


def test_a_pass_runs_when_its_flag_comes_and_is_prepared_once() -> None:
    fixture = Fixture()
    for flag in (7, 8):
        fixture.passes.arm(request(flag))
        fixture.raise_flag(flag)
        answer = fixture.passes.collect()
        assert (answer.elapsed_s, answer.error) == (0.25, None)
    ((plan, prepared),) = fixture.made
    assert (plan.operation, plan.size, plan.slots) == (Operation.WRITE, SIZE, 1)
    fixture.passes.close()
    assert prepared.closed


def test_only_the_last_few_prepared_passes_are_kept() -> None:
    fixture = Fixture()
    for size in range(1, 7):
        fixture.passes.arm(PassRequest(flag=size, flag_offset=FLAG_AT, size=size, slots=1, timeout_s=5))
        fixture.raise_flag(size)
        fixture.passes.collect()
    assert [prepared.closed for _, prepared in fixture.made] == [True, True, False, False, False, False]
    fixture.passes.close()
    assert all(prepared.closed for _, prepared in fixture.made)


def test_without_its_flag_a_pass_ends_in_bounded_time() -> None:
    fixture = Fixture()
    fixture.passes.arm(request(timeout_s=0.05))
    assert fixture.passes.collect().error == "no flag came"


def test_a_failed_pass_says_why() -> None:
    def fail() -> Pass:
        raise UnavailableError("initiator: RETRY_EXC_ERR")

    fixture = Fixture(fail)
    fixture.passes.arm(request())
    fixture.raise_flag(7)
    assert fixture.passes.collect().error == "initiator: RETRY_EXC_ERR"


def test_closing_ends_a_waiting_pass() -> None:
    fixture = Fixture()
    fixture.passes.arm(request(timeout_s=600))
    fixture.passes.close()
    assert fixture.made[0][1].closed


def test_a_pass_outside_the_buffer_or_beside_another_is_refused() -> None:
    fixture = Fixture()
    with pytest.raises(InputError, match="would leave the session's buffer"):
        fixture.passes.arm(request(slots=3))
    with pytest.raises(InputError, match="no pass was asked for"):
        fixture.passes.collect()
    fixture.passes.arm(request())
    with pytest.raises(InputError, match="collect it first"):
        fixture.passes.arm(request())
    fixture.passes.close()


@pytest.mark.parametrize("complete", [True, False])
def test_a_flag_that_overtook_its_payload_is_told(complete: bool) -> None:
    fixture = Fixture()
    pattern.fill(fixture.memory[:SIZE], 7)
    if not complete:
        fixture.memory[SIZE - 512 : SIZE] = bytes(512)
    fixture.passes.arm(request(watch=True))
    fixture.raise_flag(7)
    error = fixture.passes.collect().error
    if complete:
        assert error is None
    else:
        assert error is not None
        assert error.startswith("short write (message 0 ends after 3584 of 4096 bytes")
    fixture.passes.close()
