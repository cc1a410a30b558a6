"""The loop at a terminal: keys in, frames out, and the terminal as it was at the end, however that comes."""

import os
import select
import signal
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from rich.console import Console, ConsoleDimensions, Group
from rich.live import Live

from kvdiag.model.top import TopDocument
from kvdiag.top import keys, view
from kvdiag.top.poll import Poller
from kvdiag.top.state import State, press

_TICK_S = 0.1
_REDRAW_S = 1.0
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Screen:
    """Runs until the person quits or a signal ends it."""

    def __init__(self, console: Console, poller: Poller, interval_s: float, state: State) -> None:
        self._console, self._poller, self._interval_s, self._state = console, poller, interval_s, state
        self._signal = 0
        self._stop_asked = False
        self._document: TopDocument | None = None

    def run(self) -> int:
        """Return 0, or 128 and the number of the signal that ended it."""
        with _handled(self._noted):
            while not self._state.quit and not self._signal:
                with _keyboard() as keyboard, self._live() as live:
                    self._loop(keyboard, live)
                if self._stop_asked:
                    self._stop_asked = False
                    os.kill(os.getpid(), signal.SIGSTOP)
        return 128 + self._signal if self._signal else 0

    def _live(self) -> Live:
        return Live(
            console=self._console, screen=True, auto_refresh=False, redirect_stdout=False, redirect_stderr=False
        )

    def _noted(self, number: int, _: FrameType | None) -> None:
        if number == signal.SIGTSTP:
            self._stop_asked = True
        else:
            self._signal = number

    def _loop(self, keyboard: int | None, live: Live) -> None:
        seen, size, drawn_s = -1, None, 0.0
        note = "" if keyboard is not None else "no keys: standard input is no terminal; Ctrl-C ends"
        while not self._state.quit and not self._signal and not self._stop_asked:
            now_s = time.monotonic()
            changed = self._poller.readings != seen or now_s - drawn_s >= _REDRAW_S
            if self._document is None or (changed and not self._state.paused):
                seen = self._poller.readings
                self._document = self._poller.document()
            if changed or self._size() != size:
                size, drawn_s = self._size(), now_s
                self._draw(live, note)
            if self._pressed(keyboard):
                self._draw(live, note)

    def _size(self) -> ConsoleDimensions:
        """Return the terminal's own size: COLUMNS and LINES, where they are exported, do not follow it."""
        try:
            width, height = os.get_terminal_size(self._console.file.fileno())
        except OSError:
            return self._console.size
        return ConsoleDimensions(width or 80, height or 24)

    def _draw(self, live: Live, note: str) -> None:
        assert self._document is not None
        size = self._size()
        self._console.size = size
        lines = view.draw(
            self._document, self._state, width=size.width, height=size.height, interval_s=self._interval_s, note=note
        )
        live.update(Group(*lines), refresh=True)

    def _pressed(self, keyboard: int | None) -> bool:
        """Wait for keys for one tick; a terminal that is gone ends it as SIGHUP does."""
        if keyboard is None:
            time.sleep(_TICK_S)
            return False
        if not select.select([keyboard], [], [], _TICK_S)[0]:
            return False
        try:
            data = os.read(keyboard, 256)
        except OSError:
            data = b""
        if not data:
            self._signal = signal.SIGHUP
            return False
        for key in keys.decode(data):
            self._state = press(self._state, key, view.columns(self._state), max(1, self._size().height - 8))
        return True


@contextmanager
def _handled(note: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    before: dict[int, Any] = {number: signal.signal(number, note) for number in (*_ENDING, signal.SIGTSTP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _keyboard() -> Iterator[int | None]:
    """Yield standard input, each key at once and unseen; None where it is no terminal. Signals' keys stay signals."""
    if not sys.stdin.isatty():
        yield None
        return
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    try:
        tty.setcbreak(descriptor)
        yield descriptor
    finally:
        termios.tcsetattr(descriptor, termios.TCSAFLUSH, before)
