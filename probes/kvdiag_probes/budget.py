"""A probe's average load on the wire, held below what the operator allows beside serving traffic."""

import time
from collections.abc import Callable


class Budget:
    """At most `bytes_per_second` on average over the whole command (None: no bound).

    Bursts between two calls of `spend` go at full speed: keep them short. `waited_s` is the time spent waiting.
    """

    def __init__(
        self,
        bytes_per_second: float | None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._rate, self._clock, self._sleep = bytes_per_second, clock, sleep
        self._started_s = clock()
        self._bytes = 0
        self.waited_s = 0.0

    def spend(self, moved_bytes: int) -> None:
        """Count bytes that were moved, and wait until the average is within the bound again."""
        if self._rate is None:
            return
        self._bytes += moved_bytes
        ahead_s = self._bytes / self._rate - (self._clock() - self._started_s)
        if ahead_s > 0:
            self._sleep(ahead_s)
            self.waited_s += ahead_s
