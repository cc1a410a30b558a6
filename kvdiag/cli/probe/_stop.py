"""Ctrl-C, SIGTERM or SIGHUP during a probe: what was measured before is printed and kept, as where one fails."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvdiag.errors import StoppedError

_told: "list[StoppedError]" = []


def insist() -> None:
    """Raise what a signal raised before, where something swallowed it: an import that tries, a finalizer."""
    if _told:
        raise _told.pop()


@contextmanager
def stoppable() -> Iterator[None]:
    """Turn the first signal into StoppedError, which ends a measurement as a failure does; a second ends at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    from kvdiag.errors import StoppedError

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def stop(number: int, frame: FrameType | None) -> None:  # noqa: ARG001  (as signal handlers are called)
        restore()
        name = signal.Signals(number).name
        _told.append(StoppedError("interrupted" if number == signal.SIGINT else f"ended by {name}", number))
        raise _told[0]

    found = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    # nohup's wish is kept; Ctrl-C is sent on purpose, even to what a shell started in the background.
    before = {
        number: handler for number, handler in found.items() if number != signal.SIGHUP or handler is not signal.SIG_IGN
    }
    try:
        for number in before:
            signal.signal(number, stop)
        yield
    finally:
        _told.clear()
        restore()
