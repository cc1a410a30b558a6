"""A probe's average load, held below what the operator allows beside serving traffic."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from kvdiag.errors import UsageError

_BURST_S, _CREDIT_S = 0.1, 1.0
"""What goes at full speed at a time is at most a tenth of a second's worth where the probe can cut it so small; of a
quiet time, as while payloads are compared, one second is made up for."""

_SLICE_S, _LONGEST_REST_S = 1.0, 60.0


class Budget:
    """At most `bytes_per_second` on average over the whole command (None: no bound).

    Bursts between two calls of `spend` go at full speed: see `burst`. `waited_s` is the time spent waiting.
    """

    def __init__(
        self,
        bytes_per_second: float | None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._rate, self._clock, self._sleep = bytes_per_second, clock, sleep
        self._paid_until_s = clock()
        self.waited_s = 0.0

    @property
    def limited(self) -> bool:
        """Whether there is a bound."""
        return self._rate is not None

    def burst(self, size: int, most: int) -> int:
        """Return how many pieces of so many bytes may follow each other, from 1 to `most`."""
        return most if self._rate is None else max(1, min(most, int(self._rate * _BURST_S / size)))

    def spend(self, moved_bytes: int, keep: Callable[[], object] = lambda: None) -> None:
        """Count bytes that were moved, and wait until the average is within the bound again.

        `keep` is called every second of it: it uses what would be freed as idle. UsageError where no probe can be cut
        so small that the rest after each piece is bearable.
        """
        if self._rate is None:
            return
        now_s = self._clock()
        self._paid_until_s = max(self._paid_until_s, now_s - _CREDIT_S) + moved_bytes / self._rate
        ahead_s = self._paid_until_s - now_s
        if ahead_s > _LONGEST_REST_S:
            least = moved_bytes / _LONGEST_REST_S
            raise UsageError(
                f"--budget: {self._rate:.0f} B/s would have {moved_bytes} bytes, the least that this probe moves at a "
                f"time, followed by {ahead_s:.0f} s of rest: give {least:.0f}B/s or more, or smaller --size or "
                "--queue-depth"
            )
        while ahead_s > 0:
            self._sleep(min(ahead_s, _SLICE_S))
            self.waited_s += min(ahead_s, _SLICE_S)
            ahead_s -= _SLICE_S
            if ahead_s > 0:
                keep()

    @contextmanager
    def in_force(self) -> Iterator[None]:
        """Have the transfers that this thread makes in the block spend from this budget."""
        token = _current.set(self)
        try:
            yield
        finally:
            _current.reset(token)


_current: ContextVar[Budget | None] = ContextVar("budget", default=None)


def current() -> Budget:
    """Return the budget in force here, or one without a bound."""
    return _current.get() or Budget(None)
