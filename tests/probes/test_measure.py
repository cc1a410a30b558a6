import struct
from collections.abc import Callable

import pytest

from kvdiag_probes import pattern
from kvdiag_probes.budget import Budget
from kvdiag_probes.corruption import classify
from kvdiag_probes.datapath import Operation, Pass, Plan
from kvdiag_probes.errors import PayloadMismatchError
from kvdiag_probes.measure import Amount, Reverse, Runner


class Wire:
    """Two buffers in one process; a pass copies between them and takes `seconds` of its own clock."""

    def __init__(self, size: int = 1 << 20, seconds: float = 0.5) -> None:
        self.local, self.remote = bytearray(size), bytearray(size)
        self.seconds = seconds
        self.plans: list[Plan] = []
        self.spoil: Callable[[Plan], None] = lambda plan: None
        self.open_passes = 0

    @property
    def buffer(self) -> memoryview:
        return memoryview(self.local)

    def prepare(self, plan: Plan) -> "WirePass":
        self.open_passes += 1
        return WirePass(self, plan)

    def push(self, start: int, stop: int) -> None: ...

    def pull(self, start: int, stop: int) -> None: ...

    def close(self) -> None: ...

    def fill(self, seed: int, size: int) -> None:
        pattern.fill(memoryview(self.remote)[:size], seed)

    def verify(self, seed: int, size: int) -> tuple[str, str | None]:
        view = memoryview(self.remote)[:size]
        mismatch = pattern.find_mismatch(view, seed)
        return pattern.digest(view), None if mismatch is None else str(mismatch)


class WirePass:
    def __init__(self, wire: Wire, plan: Plan) -> None:
        self.wire, self.plan = wire, plan

    def run(self) -> Pass:
        ends = (self.wire.local, self.wire.remote)
        source, target = ends if self.plan.operation.pushes else ends[::-1]
        target[: self.plan.bytes] = source[: self.plan.bytes]
        self.wire.plans.append(self.plan)
        self.wire.spoil(self.plan)
        return Pass(self.wire.seconds, [self.wire.seconds / self.plan.slots] * self.plan.slots)

    def close(self) -> None:
        self.wire.open_passes -= 1


def runner(wire: Wire, operation: Operation = Operation.WRITE) -> Runner:
    return Runner(path=wire, far=wire, peer="b:1", operation=operation, queue_depth=4, timeout_s=1)


@pytest.mark.parametrize("operation", [Operation.WRITE, Operation.READ])
def test_iterations_are_met_exactly_and_every_byte_is_verified(operation: Operation) -> None:
    wire = Wire(seconds=0.25)
    result = runner(wire, operation).measure(1, Amount(iterations=10_000, duration_s=None, warmup=10))
    assert [plan.slots for plan in wire.plans] == [10, 4096, 4096, 1808]
    assert (result.iterations, result.bytes, result.verified_bytes) == (10_000, 10_000, 10_000)
    assert result.seconds == 0.75
    assert result.bytes_per_second == pytest.approx(10_000 / 0.75)
    assert result.peak_bytes_per_second == 4096 / 0.25
    assert result.latency_s.count == 10_000
    assert wire.open_passes == 0


def test_a_duration_is_filled_with_whole_passes() -> None:
    wire = Wire(seconds=0.5)
    result = runner(wire).measure(1024, Amount(iterations=None, duration_s=1.2, warmup=0))
    assert len(wire.plans) == 3 and result.seconds == 1.5
    assert result.iterations == 3 * wire.plans[0].slots


def test_first_is_one_operation() -> None:
    wire = Wire(seconds=0.125)
    assert runner(wire).first(4096) == 0.125
    assert [(plan.slots, plan.queue_depth) for plan in wire.plans] == [(1, 4)]


@pytest.mark.parametrize("operation", [Operation.WRITE, Operation.READ])
def test_one_flipped_bit_in_any_pass_is_found(operation: Operation) -> None:
    wire = Wire()

    def spoil(plan: Plan) -> None:
        if len(wire.plans) == 3:
            (wire.remote if operation == Operation.WRITE else wire.local)[777] ^= 4

    wire.spoil = spoil
    with pytest.raises(
        PayloadMismatchError, match=r"delivered wrong bytes: .*first wrong byte at offset 777 "
    ) as caught:
        runner(wire, operation).measure(1, Amount(iterations=20_000, duration_s=None, warmup=0))
    assert caught.value.exit_code == 2
    assert len(wire.plans) == 3 and wire.open_passes == 0


@pytest.mark.parametrize("operation", [Operation.WRITE, Operation.READ])
def test_a_transfer_that_moves_nothing_is_found(operation: Operation) -> None:
    """Stale bytes of the pass before are no delivery."""
    wire = Wire()
    run = runner(wire, operation)
    run.first(4096)
    before = bytes(wire.remote), bytes(wire.local)

    def undo(plan: Plan) -> None:
        if operation == Operation.WRITE:
            wire.remote[:] = before[0]
        else:
            wire.local[:] = before[1]

    wire.spoil = undo
    with pytest.raises(PayloadMismatchError, match="offset 0 "):
        run.first(4096)


def test_an_agent_that_calls_wrong_bytes_right_is_caught_by_its_digest() -> None:
    class Liar(Wire):
        def verify(self, seed: int, size: int) -> tuple[str, str | None]:
            return pattern.digest(memoryview(self.remote)[: size - 1]), None

    with pytest.raises(PayloadMismatchError, match="digest"):
        runner(Liar()).first(64)


class ActiveWire(Wire):
    """A peer that also transfers: its own pass copies from `reverse_base` on, when it is collected."""

    def __init__(self, size: int = 1 << 16) -> None:
        super().__init__(size, seconds=0.25)
        self.armed: tuple[Plan, int, int | None] | None = None
        self.receives: list[int] = []
        self.spoil_reverse: Callable[[], None] = lambda: None
        self.overtaken = False
        self.checked: list[tuple[int | None, int]] = []

    def fill(self, seed: int, size: int, offset: int = 0) -> None:
        pattern.fill(memoryview(self.remote)[offset : offset + size], seed)

    def check(self, seed: int, plan: Plan, stale: int | None, immediates: int) -> tuple[str, str | None]:
        self.checked.append((stale, immediates))
        view = memoryview(self.remote)[plan.base : plan.base + plan.bytes]
        wrong = classify(view, seed, plan.size, stale)
        return pattern.digest(view), None if wrong is None else str(wrong)

    def receive(self, plan: Plan) -> None:
        self.receives.append(plan.slots)

    def arm(self, plan: Plan, flag: int, flag_offset: int, watched_seed: int | None = None) -> None:
        assert struct.unpack_from("<Q", self.local, flag_offset)[0] == flag
        self.armed = plan, flag, watched_seed

    def answer(self, plan: Plan, seed: int) -> None:
        raise AssertionError("only a ping-pong is answered")

    def collect(self) -> tuple[float, str | None]:
        assert self.armed is not None
        plan, _, watched = self.armed
        if watched is not None:
            return 0.0, "stale (…)" if self.overtaken else self.check(watched, plan, None, 0)[1]
        source, target = (self.remote, self.local) if plan.operation.pushes else (self.local, self.remote)
        part = slice(plan.base, plan.base + plan.bytes)
        target[part] = source[part]
        self.spoil_reverse()
        return 0.5, None

    def finish(self) -> float:
        return self.collect()[0]

    def post(self, count: int, chain: int) -> None:
        self.receives.append(-count)

    def reap(self, count: int, chain: int, timeout_s: float) -> str | None:
        return None


HALF = 1 << 15


def both_ways(wire: ActiveWire, operation: Operation) -> Runner:
    made = runner(wire, operation)
    made.reverse = Reverse(base=HALF // 2, flag_offset=HALF, receives=wire)
    return made


@pytest.mark.parametrize("operation", list(Operation))
def test_both_directions_are_verified_and_the_slower_one_counts(operation: Operation) -> None:
    wire = ActiveWire()
    result = both_ways(wire, operation).measure(64, Amount(iterations=100, duration_s=None, warmup=0))
    assert (result.iterations, result.bytes, result.seconds) == (100, 12800, 0.5)
    assert result.reverse_bytes_per_second == 6400 / 0.5
    assert wire.receives == ([100, -100] if operation is Operation.WRITE_IMM else [])


@pytest.mark.parametrize("operation", [Operation.WRITE, Operation.READ])
def test_a_wrong_byte_of_the_peers_own_transfer_is_found(operation: Operation) -> None:
    wire = ActiveWire()

    def spoil() -> None:
        (wire.local if operation.pushes else wire.remote)[HALF // 2 + 70] ^= 1

    wire.spoil_reverse = spoil
    with pytest.raises(PayloadMismatchError, match=r"the peer's (WRITE|READ) delivered wrong bytes: bit flip"):
        both_ways(wire, operation).measure(64, Amount(iterations=10, duration_s=None, warmup=0))


def test_immediates_are_asked_for_and_the_pass_before_is_named() -> None:
    wire = ActiveWire()
    runner(wire, Operation.WRITE_IMM).measure(1, Amount(iterations=5000, duration_s=None, warmup=0))
    assert wire.receives == [4096, 904]
    assert wire.checked == [(None, 4096), (1, 904)]


@pytest.mark.parametrize("overtaken", [True, False])
def test_a_flag_that_overtakes_its_payload_is_a_wrong_delivery(overtaken: bool) -> None:
    wire = ActiveWire()
    wire.overtaken = overtaken
    if overtaken:
        with pytest.raises(PayloadMismatchError, match="in round 1 of 3 the flag was seen before its payload"):
            runner(wire).check_ordering(4096, 3, HALF)
    else:
        assert runner(wire).check_ordering(4096, 3, HALF).rounds == 3
        assert [(plan.flag_offset, plan.flag_last) for plan in wire.plans] == [(HALF, True)] * 3


def test_rails_carry_different_patterns_and_each_is_verified() -> None:
    first, second = ActiveWire(), ActiveWire()
    made = runner(first)
    made.rails = [(second, second)]
    first.spoil = lambda plan: second.remote.__setitem__(slice(0, plan.bytes), first.remote[: plan.bytes])
    with pytest.raises(PayloadMismatchError, match="delivered wrong bytes"):
        made.measure(4096, Amount(iterations=1, duration_s=None, warmup=0))
    first.spoil = lambda plan: second.remote.__setitem__(slice(0, plan.bytes), second.local[: plan.bytes])
    result = made.measure(4096, Amount(iterations=2, duration_s=None, warmup=0))
    assert (result.iterations, result.bytes) == (2, 2 * 2 * 4096)


@pytest.mark.parametrize(("rate", "slots"), [(163_840.0, 8), (1024.0, 4)])
def test_a_budget_paces_the_passes_of_a_run_not_only_its_end(rate: float, slots: int) -> None:
    """A queue full is the least that goes at a time: else it would be no measurement at that depth."""
    now, slept = [0.0], list[float]()

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds

    wire = Wire()
    with Budget(rate, clock=lambda: now[0], sleep=sleep).in_force():
        run = runner(wire)
    run.measure(2048, Amount(iterations=16, duration_s=None, warmup=0))
    assert [plan.slots for plan in wire.plans] == [slots] * (16 // slots)
    assert sum(slept) == pytest.approx(16 * 2048 / rate)
    assert {one.stage: one.seconds for one in run.stages.times()}.keys() >= {"budget"}


def test_without_a_budget_no_stage_is_charged_for_one() -> None:
    run = runner(Wire())
    run.first(64)
    assert "budget" not in {one.stage for one in run.stages.times()}
