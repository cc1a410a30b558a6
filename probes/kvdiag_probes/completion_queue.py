"""A completion queue read one completion at a time, without an object for each, stamped by the adapter where it can."""

import errno
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

_POLL_BATCH = 16
_READINGS = 3
_TICK_S = 1e-7
"""Adapters count in 10 MHz or faster."""


@dataclass(frozen=True, slots=True)
class Completion:
    wr_id: int
    status: int
    vendor_err: int = 0


class CompletionQueue:
    """`ready(attr)` is 0 where it took up a completion; then `stamp()` times it, and `take()` returns (wr_id, status).

    These three are plain functions for loops that count nanoseconds. Extended completion queues (ibv_create_cq_ex(3))
    spare pyverbs the object that it makes of each completion, the dearest part of a small message; they are read one
    `start_poll` a completion, since rdma_rxe's ibv_next_poll was wrong before rdma-core 55. Devices that have none are
    polled the ordinary way.
    """

    ready: Callable[[Any], int]
    attr: Any = None
    take: Callable[[], tuple[int, int]]
    stamp: Callable[[], Any]
    vendor_err: int = 0
    """The adapter's syndrome of the last completion that failed."""

    def __init__(self, context: Any, entries: int) -> None:
        from pyverbs.pyverbs_error import PyverbsError

        self._error = PyverbsError
        self._clock: DeviceClock | None = None
        self.stamp = time.perf_counter
        self.timestamps = "not offered by this device"
        self.extended = False
        self.verbs = self._extended(context, entries, stamped=True) or self._extended(context, entries, stamped=False)
        if self.verbs is None:
            from pyverbs.cq import CQ

            self.verbs = CQ(context, entries)
            self._read_plainly(self.verbs)

    def _extended(self, context: Any, entries: int, *, stamped: bool) -> Any:
        """Return an extended queue, or None where the device has no such thing."""
        import pyverbs.enums as e
        from pyverbs.cq import CQEX, CqInitAttrEx

        flags = 0
        try:
            if stamped:
                self._clock = DeviceClock.of(context)
                if self._clock is None:
                    return None
                flags = e.IBV_WC_EX_WITH_COMPLETION_TIMESTAMP
            made = CQEX(context, CqInitAttrEx(cqe=entries, wc_flags=flags))
        except self._error:
            self._clock = None
            return None
        self._read_extended(made)
        self.extended = True
        if self._clock is not None:
            self._stamp(made)
        return made

    def _read_extended(self, made: Any) -> None:
        from pyverbs.cq import PollCqAttr

        end = made.end_poll

        def take() -> tuple[int, int]:
            taken = made.wr_id, made.status
            if taken[1]:
                self.vendor_err = made.read_vendor_err()
            end()
            return taken

        self.ready, self.attr, self.take = made.start_poll, PollCqAttr(), take

    def _stamp(self, made: Any) -> None:
        read, clock = made.read_timestamp, time.perf_counter
        self.stamp = lambda: (clock(), read())
        self.timestamps = "used: latencies end at the adapter's own stamp"

    def _read_plainly(self, made: Any) -> None:
        waiting: deque[Any] = deque()

        def ready(_: Any) -> int:
            if not waiting:
                waiting.extend(made.poll(_POLL_BATCH)[1])
            return 0 if waiting else errno.ENOENT

        def take() -> tuple[int, int]:
            taken = waiting.popleft()
            if taken.status:
                self.vendor_err = taken.vendor_err
            return taken.wr_id, taken.status

        self.ready, self.take = ready, take

    def poll(self, most: int) -> tuple[int, list[Completion]]:
        """Return up to so many completions, and how many they are."""
        found: list[Completion] = []
        while len(found) < most and not self.ready(self.attr):
            wr_id, status = self.take()
            found.append(Completion(wr_id, status, self.vendor_err if status else 0))
        return len(found), found

    @property
    def stamped(self) -> bool:
        """Whether `stamp` returns the adapter's ticks beside this host's time."""
        return self._clock is not None

    def begin(self) -> None:
        """Compare the adapter's clock with this host's, before a pass."""
        if self._clock is not None:
            self._before = self._clock.mark()

    def times(self, stamps: Sequence[Any], posted_s: Sequence[float]) -> Sequence[float]:
        """Return when each completion came, in seconds of time.perf_counter.

        Where one of the adapter's stamps lies before its post, or after it was seen, the two clocks do not compare:
        then, and from then on, it is this host's clock that counts.
        """
        if self._clock is None:
            return stamps
        seen_s = [host_s for host_s, _ in stamps]
        before, after = self._before, self._clock.mark()
        found = self._clock.host_times([ticks for _, ticks in stamps], before, after)
        slack_s = max(before.error_s, after.error_s) + _TICK_S
        rows = zip(posted_s, found, seen_s, strict=True)
        if all(posted - slack_s <= came <= seen + slack_s for posted, came, seen in rows):
            return found
        self._clock = None
        self.stamp = time.perf_counter
        self.timestamps = "offered, but they do not fit this host's clock: latencies are from the host's"
        return seen_s

    def close(self) -> None:
        self.verbs.close()


@dataclass(frozen=True, slots=True, order=True)
class Mark:
    """One instant on two clocks: seconds of this host, at most `error_s` off, and ticks of an adapter."""

    error_s: float
    host_s: float
    ticks: int


@dataclass(frozen=True, slots=True)
class DeviceClock:
    """An adapter's free-running counter; `read` returns it now, `mask` are the bits that its stamps carry."""

    read: Callable[[], int]
    mask: int

    @classmethod
    def of(cls, context: Any) -> "DeviceClock | None":
        """Return the clock of a device that stamps completions (ibv_query_device_ex(3)), else None."""
        offered = context.query_device_ex()
        if not offered.completion_timestamp_mask or not offered.hca_core_clock:
            return None
        context.query_rt_values_ex()
        # The raw counter is in the nanoseconds' place (ibv_query_rt_values_ex(3)).
        return cls(lambda: int(context.query_rt_values_ex()[1]), int(offered.completion_timestamp_mask))

    def mark(self) -> Mark:
        """Return the tightest of some readings."""
        marks = []
        for _ in range(_READINGS):
            started_s = time.perf_counter()
            ticks = self.read()
            ended_s = time.perf_counter()
            marks.append(Mark((ended_s - started_s) / 2, (started_s + ended_s) / 2, ticks))
        return min(marks)

    def host_times(self, ticks: Sequence[int], before: Mark, after: Mark) -> list[float]:
        """Return stamps in seconds of this host, on the line through two marks; the counter may wrap in between."""
        span = (after.ticks - before.ticks) & self.mask
        if not span:
            return [before.host_s for _ in ticks]
        seconds_per_tick = (after.host_s - before.host_s) / span
        return [before.host_s + ((one - before.ticks) & self.mask) * seconds_per_tick for one in ticks]
