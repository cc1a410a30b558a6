"""One line on the terminal that says how far a probe is; it is gone before anything else is printed."""

import time
from typing import TYPE_CHECKING

from kvdiag.cli._output import harmless, stderr

if TYPE_CHECKING:
    from rich.console import Console

_SHORTEST_S = 0.1
"""Between two lines: a terminal far away must not slow down what is measured."""
_ERASE = "\r\x1b[K"


class Line:
    """Shows a text in the place of the one before; texts that follow each other too soon are left out."""

    def __init__(self, console: "Console") -> None:
        self._console = console
        self._shows = console.is_terminal and not console.is_dumb_terminal
        self._next_s = 0.0
        self._shown = False

    def __call__(self, text: str) -> None:
        now_s = time.monotonic()
        if not self._shows or now_s < self._next_s:
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
            self._shows = False


_lines: list[Line] = []


def progress() -> Line:
    """Return what shows one line of progress on a terminal, and nothing elsewhere."""
    _lines.append(Line(stderr()))
    return _lines[-1]


def clear_progress() -> None:
    """Take every line away, for good."""
    while _lines:
        _lines.pop().clear()
