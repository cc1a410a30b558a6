"""A process that stops now and then, as one does whose host is suspended, swapping or starved."""

import os
from contextlib import suppress
from signal import SIGCONT, SIGSTOP


class Pauses:
    """Stops the process for `length_s` seconds at the beginning of every `every_s`, from `begin_s` on."""

    def __init__(self, pid: int, begin_s: float, length_s: float, every_s: float) -> None:
        self._pid, self._begin_s, self._length_s, self._every_s = pid, begin_s, length_s, every_s
        self._stopped = False

    def step(self, now_s: float) -> None:
        """Stop it or let it go on, as the time demands; call it several times a pause."""
        wanted = now_s >= self._begin_s and (now_s - self._begin_s) % self._every_s < self._length_s
        if wanted != self._stopped:
            self._signal(stop=wanted)

    def end(self) -> None:
        """Let it go on for good."""
        if self._stopped:
            self._signal(stop=False)

    def _signal(self, *, stop: bool) -> None:
        with suppress(ProcessLookupError):
            os.kill(self._pid, SIGSTOP if stop else SIGCONT)
        self._stopped = stop
