"""SIGTERM and SIGINT to end, SIGHUP to take up a new configuration; handled where the program waits, not in between."""

import logging
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from kvdiag.errors import KvdiagError
from kvdiag_exporters.config import Config
from kvdiag_exporters.reloading import Reloads

_log = logging.getLogger(__name__)

LOOK_EVERY_S = 0.5
"""The kernel may give a signal to any thread; Python handles it once the main thread moves."""


class Signals:
    """`new` is the configuration to go on with, once `wait` said that something is to be done; None: end. `reloads`
    says how the last one went. `at_end` is called at once, in the signal's handler, when it is asked to end.
    """

    def __init__(self, reload: Callable[[], Config] | None) -> None:
        self.new: Config | None = None
        self.reloads = Reloads()
        self.at_end: Callable[[], None] = lambda: None
        self._reload = reload
        self._woken = threading.Event()
        self._end = False
        self._reload_asked = False

    @property
    def ending(self) -> bool:
        """Whether it was asked to end."""
        return self._end

    def wait(self, timeout_s: float = LOOK_EVERY_S) -> bool:
        """Return whether to leave, after at most `timeout_s`: asked to end, or a new configuration that can be read.

        One that cannot be read is told, and the present one stays.
        """
        until_s = time.monotonic() + timeout_s
        while not self._woken.wait(max(0.0, min(LOOK_EVERY_S, until_s - time.monotonic()))):
            if time.monotonic() >= until_s:
                break
        if self._reload_asked and not self._end:
            self._woken.clear()
            self._reload_asked = False
            self._take_up()
        return self._end or self.new is not None

    def end(self) -> None:
        """Ask to end."""
        self._end = True
        self.at_end()
        self._woken.set()

    def ask_reload(self) -> None:
        """Ask for a new configuration."""
        self._reload_asked = True
        self._woken.set()

    def _take_up(self) -> None:
        if self._reload is None:
            _log.warning("SIGHUP: there is no configuration file to read again")
            return
        try:
            self.new = self._reload()
            self.reloads.successful = True
        except KvdiagError as error:
            self.reloads.successful = False
            _log.error("SIGHUP: the configuration stays as it is: %s", error)


@contextmanager
def handled(reload: Callable[[], Config] | None) -> Iterator[Signals]:
    """Give the signals of this process to a Signals object while the block runs."""
    found = Signals(reload)

    def end(number: int, _frame: FrameType | None) -> None:
        _log.info("ending: %s", signal.Signals(number).name)
        found.end()

    def again(_number: int, _frame: FrameType | None) -> None:
        found.ask_reload()

    wanted = {signal.SIGTERM: end, signal.SIGINT: end, signal.SIGHUP: again}
    before = {number: signal.signal(number, handler) for number, handler in wanted.items()}
    try:
        yield found
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
