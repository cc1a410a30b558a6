"""Ctrl-C during a probe: what was measured before it is printed and kept, as where a probe fails in mid-run."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def stoppable() -> Iterator[None]:
    """Turn the first Ctrl-C into StoppedError, which ends a measurement as a failure does; the second ends at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    from kvdiag.errors import StoppedError

    def stop(number: int, frame: FrameType | None) -> None:  # noqa: ARG001  (as signal handlers are called)
        signal.signal(signal.SIGINT, before)
        raise StoppedError("interrupted")

    before = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
