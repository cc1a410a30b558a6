"""One line on the terminal that says how far a probe is; it is gone before anything else is printed.

Elsewhere (a file, a job's log) a line now and then of a probe that takes long: silence looks like a hang.
"""

import math
import time
from typing import TYPE_CHECKING

from kvdiag.cli._output import harmless, stderr
from kvdiag.cli.probe._stop import insist

if TYPE_CHECKING:
    from rich.console import Console

_SHORTEST_S = 0.1
"""Between two lines: a terminal far away must not slow down what is measured."""
QUIET_S = 10.0
"""Without a terminal nothing is said for so long: most probes are done by then."""
_SELDOM_S = 60.0
_ERASE = "\r\x1b[K"


class Line:
    """Shows a text in the place of the one before; texts that follow each other too soon are left out."""

    def __init__(self, console: "Console") -> None:
        self._console = console
        self._shows = console.is_terminal and not console.is_dumb_terminal
        self._started_s = time.monotonic()
        self._next_s = 0.0 if self._shows else self._started_s + QUIET_S
        self._shown = False

    def __call__(self, text: str) -> None:
        insist()
        now_s = time.monotonic()
        if now_s < self._next_s:
            return
        if not self._shows:
            self._next_s = now_s + _SELDOM_S
            self._write(f"kvdiag: after {now_s - self._started_s:.0f} s: {harmless(text)}\n")
            return
        self._next_s = now_s + _SHORTEST_S
        self._shown = True
        self._write(_ERASE + harmless(text)[: self._console.width - 1])

    def clear(self) -> None:
        """Take the line away."""
        if self._shown:
            self._shown = False
            self._write(_ERASE)

    def _write(self, text: str) -> None:
        try:
            self._console.file.write(text)
            self._console.file.flush()
        except OSError:  # the terminal is gone, the probe goes on
            self._next_s = math.inf


_lines: list[Line] = []


def progress() -> Line:
    """Return what shows one line of progress on a terminal, and elsewhere one now and then after QUIET_S seconds."""
    _lines.append(Line(stderr()))
    return _lines[-1]


def clear_progress() -> None:
    """Take every line away, for good."""
    while _lines:
        _lines.pop().clear()
