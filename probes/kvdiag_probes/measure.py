"""Passes over a data path, timed and verified: the clock stands still while payloads are prepared and compared."""

import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from typing import Protocol

from kvdiag.model.probe import SizeResult
from kvdiag_probes import pattern
from kvdiag_probes.datapath import DataPath, Operation, Pass, Plan, PreparedPass, chain_length, slot_count
from kvdiag_probes.distribution import distribution
from kvdiag_probes.errors import PayloadMismatchError
from kvdiag_probes.sizes import format_size

_WALL_FACTOR, _WALL_SPARE_S = 10, 10.0
"""A run bounded by transfer time ends at ten times that, and ten seconds, of elapsed time: verification is slower."""


class FarEnd(Protocol):
    """The peer's buffer, as the control channel lets us handle it."""

    def fill(self, seed: int, size: int) -> None: ...

    def verify(self, seed: int, size: int) -> tuple[str, str | None]:
        """Return the digest, and the mismatch in one line or None."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Amount:
    """How much to measure of each size: `iterations`, or passes until `duration_s` seconds of transfer are over."""

    iterations: int | None
    duration_s: float | None
    warmup: int


@dataclass(slots=True)
class _Tally:
    count: int = 0
    seconds: float = 0.0
    peak: float = 0.0
    latencies_s: list[float] = field(default_factory=list)

    def add(self, done: Pass, plan: Plan) -> None:
        self.count += plan.slots
        self.seconds += done.elapsed_s
        self.peak = max(self.peak, plan.bytes / done.elapsed_s)
        self.latencies_s += done.latencies_s


@dataclass(slots=True, kw_only=True)
class Runner:
    """Runs verified passes; every pass carries another pattern, so that stale bytes never pass for new ones.

    `corrupt`, for tests, is called with the local buffer: before a WRITE, after a READ. `progress` gets one line.
    `moved_bytes` counts every payload byte, warm-up included.
    """

    path: DataPath
    far: FarEnd
    peer: str
    operation: Operation
    queue_depth: int
    timeout_s: float
    corrupt: Callable[[memoryview], None] | None = None
    progress: Callable[[str], None] = lambda _: None
    moved_bytes: int = 0
    _seed: int = 0

    def first(self, size: int) -> float:
        """Return the seconds of one verified operation on the fresh connection."""
        plan = self._plan(size, 1, 1)
        with closing(self.path.prepare(plan)) as prepared:
            return self._verified(prepared, plan).elapsed_s

    def measure(self, size: int, amount: Amount) -> SizeResult:
        """Warm up, then measure one size; PayloadMismatchError where bytes differ, UnavailableError where it fails."""
        chain = chain_length(size, self.queue_depth)
        most = slot_count(size, self.queue_depth, amount.iterations or 1 << 30)
        self._run(size, chain, most, Amount(iterations=amount.warmup, duration_s=None, warmup=0))
        tally = self._run(size, chain, most, amount)
        total = tally.count * size
        return SizeResult(
            size_bytes=size,
            iterations=tally.count,
            bytes=total,
            verified_bytes=total,
            seconds=tally.seconds,
            bytes_per_second=total / tally.seconds if tally.count else 0.0,
            peak_bytes_per_second=tally.peak,
            operations_per_second=tally.count / tally.seconds if tally.count else 0.0,
            latency_stride=chain,
            latency_s=distribution(tally.latencies_s),
        )

    def _run(self, size: int, chain: int, most: int, amount: Amount) -> _Tally:
        tally = _Tally()
        started_s = time.monotonic()
        with ExitStack() as stack:
            prepared: dict[int, PreparedPass] = {}
            while slots := _next_slots(tally, most, amount, time.monotonic() - started_s):
                plan = self._plan(size, slots, chain)
                if slots not in prepared:
                    prepared[slots] = stack.enter_context(closing(self.path.prepare(plan)))
                tally.add(self._verified(prepared[slots], plan), plan)
                self.progress(f"{format_size(size)}: {tally.count} messages, {tally.seconds:.1f} s of transfer")
        return tally

    def _verified(self, prepared: PreparedPass, plan: Plan) -> Pass:
        self._seed = (self._seed + 1) & 0xFFFFFFFF
        self.moved_bytes += plan.bytes
        with self.path.buffer[: plan.bytes] as local:
            if self.operation == Operation.WRITE:
                pattern.fill(local, self._seed)
                expected = pattern.digest(local)
                if self.corrupt:
                    self.corrupt(local)
                done = prepared.run()
                found, mismatch = self.far.verify(self._seed, plan.bytes)
                if mismatch is None and found != expected:
                    mismatch = f"digest {found}, not {expected}, though the agent found no wrong byte"
            else:
                self.far.fill(self._seed, plan.bytes)
                done = prepared.run()
                if self.corrupt:
                    self.corrupt(local)
                wrong = pattern.find_mismatch(local, self._seed)
                mismatch = None if wrong is None else str(wrong)
        if mismatch is not None:
            raise PayloadMismatchError(
                f"{self.peer}: {self.operation.upper()} delivered wrong bytes: {mismatch} (messages of {plan.size} "
                "bytes, offset from the buffer's start); next: suspect memory, NIC or driver of either end, and "
                "repeat with --transport tcp"
            )
        return done

    def _plan(self, size: int, slots: int, chain: int) -> Plan:
        return Plan(
            operation=self.operation,
            size=size,
            slots=slots,
            queue_depth=self.queue_depth,
            chain=chain,
            timeout_s=self.timeout_s,
        )


def _next_slots(tally: _Tally, most: int, amount: Amount, elapsed_s: float) -> int:
    if amount.iterations is not None:
        return min(most, amount.iterations - tally.count)
    wanted_s = amount.duration_s or 0.0
    if tally.seconds < wanted_s and elapsed_s < wanted_s * _WALL_FACTOR + _WALL_SPARE_S:
        return most
    return 0
