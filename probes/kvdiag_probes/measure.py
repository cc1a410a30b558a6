"""Passes over a data path, timed and verified: the clock stands still while payloads are prepared and compared."""

import struct
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from typing import Protocol, runtime_checkable

from kvdiag.errors import UnavailableError
from kvdiag.model.probe import OrderingCheck, SizeResult
from kvdiag_probes import pattern
from kvdiag_probes.amount import Amount as Amount
from kvdiag_probes.amount import Tally, next_slots
from kvdiag_probes.budget import Budget, current
from kvdiag_probes.corruption import classify
from kvdiag_probes.datapath import (
    DataPath,
    ExchangingPass,
    Operation,
    Pass,
    Plan,
    PreparedPass,
    chain_length,
    slot_count,
)
from kvdiag_probes.distribution import Samples
from kvdiag_probes.errors import PayloadMismatchError
from kvdiag_probes.ping_pong import expect
from kvdiag_probes.progress import bar
from kvdiag_probes.sizes import format_size
from kvdiag_probes.stages import Stages

_FLAG = struct.Struct("<Q")


class FarEnd(Protocol):
    """The peer's buffer, as the control channel lets us handle it."""

    def fill(self, seed: int, size: int) -> None: ...

    def verify(self, seed: int, size: int) -> tuple[str, str | None]:
        """Return the digest, and the mismatch in one line or None."""
        ...


@runtime_checkable
class ActiveFarEnd(FarEnd, Protocol):
    """A far end that classifies mismatches, takes immediates, and runs passes of its own; see kvdiag_probes.far."""

    def fill(self, seed: int, size: int, offset: int = 0) -> None: ...

    def check(self, seed: int, plan: Plan, stale: int | None, immediates: int) -> tuple[str, str | None]: ...

    def receive(self, plan: Plan) -> None: ...

    def arm(self, plan: Plan, flag: int, flag_offset: int, watched_seed: int | None = None) -> None: ...

    def collect(self) -> tuple[float, str | None]: ...

    def answer(self, plan: Plan, seed: int) -> None: ...

    def finish(self) -> float: ...


class Buffered(Protocol):
    """This end's buffer of one rail."""

    @property
    def buffer(self) -> memoryview: ...

    def push(self, start: int, stop: int) -> None: ...

    def pull(self, start: int, stop: int) -> None: ...


class Receives(Protocol):
    """This end's receives, for the peer's messages with immediate data."""

    def post(self, count: int, chain: int) -> None: ...

    def reap(self, count: int, chain: int, timeout_s: float) -> str | None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Posting:
    """How messages are posted; None leaves it to their size.

    `batch` messages share one post, every `signal`-th is completed and timed, up to `inline` bytes travel inside the
    work request. `in_flight` bounds what is outstanding on all of the `queue_pairs` together; each carries a message
    of every pass.
    """

    batch: int | None = None
    signal: int | None = None
    inline: int = 0
    in_flight: int | None = None
    queue_pairs: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Reverse:
    """The peer transfers too, at the same time: its messages are at `base` on, the flag that starts it at
    `flag_offset`, in the buffers of both ends.
    """

    base: int
    flag_offset: int
    receives: Receives


@dataclass(slots=True, kw_only=True)
class Runner:
    """Runs verified passes; every pass carries another pattern, so that stale bytes never pass for new ones.

    `rails` are buffers that carry as many messages beside `path`'s own. `corrupt`, for tests, is called with the local
    buffer: before a WRITE, after a READ. With `ping_pong` the peer's transfers, of `reverse`, answer ours one by one.
    `budget` bounds the average load: passes are then short, with pauses between them, charged to the stage "budget".
    `progress` gets one line. `moved_bytes` counts every payload byte of the path
    itself in the operation's direction, warm-up included. `samples` keeps each size's raw latencies in seconds.
    """

    path: DataPath
    far: FarEnd
    peer: str
    operation: Operation
    queue_depth: int
    timeout_s: float
    posting: Posting = Posting()
    rails: Sequence[tuple[Buffered, FarEnd]] = ()
    reverse: Reverse | None = None
    ping_pong: bool = False
    corrupt: Callable[[memoryview], None] | None = None
    progress: Callable[[str], None] = lambda _: None
    samples: dict[int, Samples] | None = None
    stages: Stages = field(default_factory=Stages)
    budget: Budget = field(default_factory=current)
    receive: bool = True
    moved_bytes: int = 0
    _seed: int = 0
    _stale: dict[int, int] = field(default_factory=dict)

    def first(self, size: int) -> float:
        """Return the seconds of one verified operation on the fresh connection."""
        plan = self._plan(size, 1, 1)
        with closing(self._prepare(plan)) as prepared:
            return self._verified(prepared, plan, "first_transfer")[0].elapsed_s

    def measure(self, size: int, amount: Amount) -> SizeResult:
        """Warm up, then measure one size; PayloadMismatchError where bytes differ, UnavailableError where it fails."""
        chain = self.posting.batch or chain_length(size, self.queue_depth)
        least = max(self.queue_depth, self.posting.queue_pairs)
        most = slot_count(size, least, amount.iterations or 1 << 30)
        most = min(most, max(least, self.budget.burst(size * self._streams, most)))
        warmup = Amount(iterations=amount.warmup, duration_s=None, warmup=0)
        self._run(size, chain, most, warmup, Samples(), "warmup")
        samples = Samples(keep=self.samples is not None)
        if self.samples is not None:
            self.samples[size] = samples
        tally = self._run(size, chain, most, amount, samples, "transfer")
        total = tally.count * size * self._streams
        latencies = samples.distribution()
        return SizeResult(
            size_bytes=size,
            iterations=tally.count,
            bytes=total,
            verified_bytes=total,
            seconds=tally.seconds,
            bytes_per_second=total / tally.seconds if tally.count else 0.0,
            peak_bytes_per_second=tally.peak,
            operations_per_second=tally.count * self._streams / tally.seconds if tally.count else 0.0,
            reverse_bytes_per_second=tally.count * size / tally.reverse_s if tally.reverse_s else None,
            # Over TCP each message is waited for, and timed, by itself.
            latency_stride=1 if latencies.count == tally.count else self.posting.signal or chain,
            latency_exact=samples.exact,
            latency_s=latencies,
        )

    def check_ordering(self, size: int, rounds: int, flag_offset: int) -> OrderingCheck:
        """Write a payload and then a flag, again and again; the peer compares the payload as soon as it sees the flag.

        PayloadMismatchError where a flag overtook its payload: such a platform must not poll on memory.
        """
        far = self._active()
        plan = self._plan(size, 1, 1, flag_offset=flag_offset, flag_last=True)
        with closing(self._prepare(plan)) as prepared, self.stages.stage("ordering"):
            for round_number in range(rounds):
                seed = self._next_seed()
                with self.path.buffer[: plan.bytes] as local:
                    pattern.fill(local, seed)
                _FLAG.pack_into(self.path.buffer, flag_offset, seed)
                far.arm(plan, seed, flag_offset, watched_seed=seed)
                prepared.run()
                self.moved_bytes += plan.bytes
                _, wrong = far.collect()
                self._spend(plan.bytes)
                if wrong is not None:
                    raise PayloadMismatchError(
                        f"{self.peer}: in round {round_number + 1} of {rounds} the flag was seen before its payload: "
                        f"{wrong}; next: do not poll on memory here, wait for immediates or messages instead"
                    )
        self._stale.clear()
        return OrderingCheck(size_bytes=size, rounds=rounds)

    @property
    def _streams(self) -> int:
        return (1 + len(self.rails)) * (2 if self.reverse else 1)

    def _run(self, size: int, chain: int, most: int, amount: Amount, samples: Samples, stage: str) -> Tally:
        tally = Tally(samples)
        started_s = time.monotonic()
        with ExitStack() as stack:
            prepared: dict[int, PreparedPass] = {}
            while slots := next_slots(tally, most, amount, time.monotonic() - started_s):
                plan = self._plan(size, slots, chain)
                if slots not in prepared:
                    prepared[slots] = stack.enter_context(closing(self._prepare(plan)))
                done, reverse_s = self._verified(prepared[slots], plan, stage)
                tally.add(done, plan, self._streams, reverse_s)
                self._tell(size, amount, tally, stage, done.elapsed_s, plan.bytes * self._streams)
        return tally

    def _tell(self, size: int, amount: Amount, tally: Tally, stage: str, elapsed_s: float, moved: int) -> None:
        done, of = (tally.count, amount.iterations) if amount.iterations else (tally.seconds, amount.duration_s or 0.0)
        what = f"{stage} of {format_size(size)}, {tally.count} messages in {tally.seconds:.1f} s of it"
        self.progress(bar(done, of, what, moved / elapsed_s))

    def _prepare(self, plan: Plan) -> PreparedPass:
        with self.stages.stage("prepare"):
            return self.path.prepare(plan)

    def _verified(self, prepared: PreparedPass, plan: Plan, stage: str) -> tuple[Pass, float]:
        """Return the pass, as long as the slower direction took, and the seconds of the peer's direction or 0.

        The pass itself is charged to `stage`, what comes before and after to "verify".
        """
        with self.stages.stage("verify"):
            return self._pass(prepared, plan, stage)

    def _pass(self, prepared: PreparedPass, plan: Plan, stage: str) -> tuple[Pass, float]:
        rails: list[tuple[Buffered, FarEnd]] = [(self.path, self.far), *self.rails]
        seeds = [self._next_seed() for _ in rails]
        self.moved_bytes += plan.bytes
        expected = [self._fill(rail, seed, plan) for rail, seed in zip(rails, seeds, strict=True)]
        backwards = self._arm(plan, seeds[0])
        reverse_s = 0.0
        with self.stages.stage(stage):
            if self.ping_pong and self.reverse and backwards:
                done = self._exchange(prepared, plan, self.reverse, backwards)
            else:
                done = prepared.run()
            if self.reverse and backwards:
                reverse_s = self._active().finish()
        if self.reverse and backwards:
            self._check_reverse(self.reverse, plan, backwards)
            done = replace(done, elapsed_s=max(done.elapsed_s, reverse_s))
        for number, (rail, seed, digest) in enumerate(zip(rails, seeds, expected, strict=True)):
            mismatch = self._mismatch(rail, seed, plan, digest, self._stale.get(number))
            self._stale[number] = seed
            if mismatch is not None:
                raise self._wrong(mismatch, plan, self.operation.verb)
        self._spend(plan.bytes * self._streams)
        return done, reverse_s

    def _spend(self, moved_bytes: int) -> None:
        if self.budget.limited:
            with self.stages.stage("budget"):
                self.budget.spend(moved_bytes, self._keep)

    def _keep(self) -> None:
        """Let the agent see that its sessions are still wanted."""
        for far in (self.far, *(far for _, far in self.rails)):
            far.verify(0, 1)

    def _fill(self, rail: tuple[Buffered, FarEnd], seed: int, plan: Plan) -> str:
        near, far = rail
        if plan.operation is Operation.WRITE_IMM and self.receive:
            self._active(far).receive(plan)
        if not plan.operation.pushes:
            far.fill(seed, plan.bytes)
            return ""
        with near.buffer[: plan.bytes] as local:
            pattern.fill(local, seed)
            expected = pattern.digest(local)
            if self.corrupt:
                self.corrupt(local)
        near.push(0, plan.bytes)
        return expected

    def _mismatch(
        self, rail: tuple[Buffered, FarEnd], seed: int, plan: Plan, expected: str, stale: int | None
    ) -> str | None:
        near, far = rail
        if plan.operation.pushes:
            if isinstance(far, ActiveFarEnd):
                immediates = plan.slots if plan.operation is Operation.WRITE_IMM else 0
                found, mismatch = far.check(seed, plan, stale, immediates)
            else:
                found, mismatch = far.verify(seed, plan.bytes)
            if mismatch is None and found != expected:
                mismatch = f"digest {found}, not {expected}, though the agent found no wrong byte"
            return mismatch
        near.pull(0, plan.bytes)
        with near.buffer[: plan.bytes] as local:
            if self.corrupt:
                self.corrupt(local)
            wrong = classify(local, seed, plan.size, stale)
        return None if wrong is None else str(wrong)

    def _exchange(self, prepared: PreparedPass, plan: Plan, reverse: Reverse, backwards: int) -> Pass:
        if not isinstance(prepared, ExchangingPass):
            raise UnavailableError(f"{self.peer}: this transport cannot play ping-pong")
        with self.path.buffer[:] as buffer:
            awaited = expect(buffer, backwards, plan.size, plan.slots, reverse.base)
            return prepared.exchange(buffer, awaited, serves=True)

    def _arm(self, plan: Plan, forward: int) -> int | None:
        """Get the peer ready to transfer too, and return the seed of its payload; `forward` is that of ours."""
        if self.reverse is None:
            return None
        far, base, seed = self._active(), self.reverse.base, self._next_seed()
        if plan.operation.pushes:
            far.fill(seed, plan.bytes, base)
        else:
            with self.path.buffer[base : base + plan.bytes] as local:
                pattern.fill(local, seed)
        if plan.operation is Operation.WRITE_IMM:
            self.reverse.receives.post(plan.slots, plan.chain)
        if self.ping_pong:
            far.answer(replace(plan, base=base), forward)
            return seed
        _FLAG.pack_into(self.path.buffer, self.reverse.flag_offset, seed)
        far.arm(replace(plan, base=base, flag_offset=None), seed, self.reverse.flag_offset)
        return seed

    def _check_reverse(self, reverse: Reverse, plan: Plan, seed: int) -> None:
        theirs = replace(plan, base=reverse.base)
        mismatch: str | None = None
        if plan.operation is Operation.WRITE_IMM:
            mismatch = reverse.receives.reap(plan.slots, plan.chain, self.timeout_s)
        if mismatch is None and plan.operation.pushes:
            with self.path.buffer[theirs.base : theirs.base + plan.bytes] as local:
                wrong = classify(local, seed, plan.size)
            mismatch = None if wrong is None else str(wrong)
        elif mismatch is None:
            _, mismatch = self._active().check(seed, theirs, None, 0)
        if mismatch is not None:
            raise self._wrong(mismatch, plan, f"the peer's {self.operation.verb}")

    def _wrong(self, mismatch: str, plan: Plan, what: str) -> PayloadMismatchError:
        return PayloadMismatchError(
            f"{self.peer}: {what} delivered wrong bytes: {mismatch} (messages of {plan.size} "
            "bytes, offset from the buffer's start); next: suspect memory, NIC or driver of either end, and "
            "repeat with --transport tcp"
        )

    def _active(self, far: FarEnd | None = None) -> ActiveFarEnd:
        far = far or self.far
        if not isinstance(far, ActiveFarEnd):
            raise UnavailableError(f"{self.peer}: this peer can only be written and read")
        return far

    def _next_seed(self) -> int:
        self._seed = (self._seed + 1) & 0xFFFFFFFF
        return self._seed

    def _plan(self, size: int, slots: int, chain: int, flag_offset: int | None = None, flag_last: bool = False) -> Plan:
        if flag_offset is None and self.reverse is not None and not self.ping_pong:
            flag_offset = self.reverse.flag_offset
        return Plan(
            operation=self.operation,
            size=size,
            slots=slots,
            queue_depth=self.queue_depth,
            chain=chain,
            timeout_s=self.timeout_s,
            in_flight=self.posting.in_flight,
            signal=self.posting.signal,
            inline=self.operation.pushes and size <= self.posting.inline,
            flag_offset=flag_offset,
            flag_last=flag_last,
        )
