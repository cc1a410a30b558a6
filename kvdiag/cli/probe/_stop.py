"""Ctrl-C or SIGTERM during a probe: what was measured before it is printed and kept, as where one fails in mid-run."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def stoppable() -> Iterator[None]:
    """Turn the first signal into StoppedError, which ends a measurement as a failure does; a second ends at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    from kvdiag.errors import StoppedError, TerminatedError

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def stop(number: int, frame: FrameType | None) -> None:  # noqa: ARG001  (as signal handlers are called)
        restore()
        if number == signal.SIGTERM:
            raise TerminatedError("ended by SIGTERM")
        raise StoppedError("interrupted")

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        for number in before:
            signal.signal(number, stop)
        yield
    finally:
        restore()
