"""The attribution of `kvdiag diagnose` over the last while, again and again in a thread of low priority."""

import logging
import os
import threading
from dataclasses import dataclass

from kvdiag.derive.thin import LIVE_ROWS, of_more
from kvdiag.errors import KvdiagError
from kvdiag.model.bundle import Bundle
from kvdiag.model.diagnosis import Diagnosis
from kvdiag.model.transfer import STAGES
from kvdiag.sources.base import Clock
from kvdiag_exporters.records.counter_window import CounterWindow
from kvdiag_exporters.records.window import RecordWindow

_log = logging.getLogger(__name__)
FEWEST_REQUESTS = 50
"""Below it no variance is split: the attribution itself asks for more on either side of a change."""
NICENESS = 10
AHEAD_S = 60.0
"""A request that arrives later than that is of a clock that is wrong, or was: a window up to it could be years long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attribution:
    """One run: when it began (wall seconds), how long it took, what it found or why it found nothing."""

    time_s: float
    duration_s: float
    requests: int
    diagnosis: Diagnosis | None = None
    error: str = ""


class OnlineAttribution:
    """Runs every `interval_s` over the requests of the last `window_s`; `last` is the newest result."""

    def __init__(
        self,
        requests: RecordWindow,
        counters: CounterWindow,
        roles: dict[str, str],
        clock: Clock,
        interval_s: float,
        window_s: float,
    ) -> None:
        self.last: Attribution | None = None
        self._requests, self._counters, self._roles, self._clock = requests, counters, roles, clock
        self._interval_s, self._window_s = interval_s, window_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="attribution", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Begin no further run; one in progress ends with the process."""
        self._stop.set()

    def attribute(self) -> Attribution:
        """Run once, now."""
        now_s, start_s = self._clock.wall_s(), self._clock.monotonic_s()
        since_s = now_s - self._window_s
        found = self._requests.columns(since_s, LIVE_ROWS, now_s + AHEAD_S)
        columns, count = (None, 0) if found is None else found
        diagnosis, error = None, ""
        if columns is None or count < FEWEST_REQUESTS:
            error = f"{count} requests in the last {self._window_s:g} s, at least {FEWEST_REQUESTS} are needed"
        elif not set(STAGES) & columns.numbers.keys():
            error = f"none of the last {count} requests has a stage"
        else:
            series, metrics = self._counters.series(since_s)
            bundle = Bundle(
                origin="the running exporter", requests=columns, series=series, metrics=metrics, roles=self._roles
            )
            try:
                from kvdiag.attribution import diagnose

                diagnosis = diagnose(of_more(bundle, count))
            except KvdiagError as failure:
                error = str(failure)
            except Exception as failure:  # its fault must not end the thread: the next window may be another
                error = f"{type(failure).__name__}: {failure}"
                if self.last is None or self.last.error != error:
                    _log.warning("attributing the last requests failed: %s; not repeated until it changes", error)
                _log.debug("attributing failed", exc_info=True)
        self.last = Attribution(
            time_s=now_s,
            duration_s=self._clock.monotonic_s() - start_s,
            requests=count,
            diagnosis=diagnosis,
            error=error,
        )
        return self.last

    def _run(self) -> None:
        try:
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
        except OSError:
            _log.debug("the attribution runs at normal priority", exc_info=True)
        while not self._stop.wait(self._interval_s):
            # At most a tenth of the time, whatever the window holds.
            took_s = self.attribute().duration_s
            if self._stop.wait(max(0.0, 9 * took_s - self._interval_s)):
                return
