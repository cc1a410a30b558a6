"""Reading the exporters: a thread each, so that one that hangs holds up no other."""

import threading
from collections.abc import Sequence

from kvdiag.errors import KvdiagError
from kvdiag.model.top import TopDocument
from kvdiag.sources.base import Clock
from kvdiag.sources.exposition import Access, read_exporter
from kvdiag.top.frame import Watched, build
from kvdiag.top.names import WANTED
from kvdiag.top.tracks import Track

LONGEST_S = 10.0


class Poller:
    """Reads every exporter at the interval until `stop`; `readings` counts the tries that have ended."""

    def __init__(
        self,
        urls: Sequence[str],
        way: Access,
        interval_s: float,
        window_s: float,
        clock: Clock,
        most: int | None = None,
    ) -> None:
        self._way, self._interval_s, self._clock, self._most = way, interval_s, clock, most
        self._watched = [Watched(url, Track(window_s)) for url in urls]
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._threads = [threading.Thread(target=self._follow, args=(one,), daemon=True) for one in self._watched]
        self.readings = 0
        self.answers = 0

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Ask no more; a request that is under way ends with the process."""
        self._stopped.set()

    def join(self) -> None:
        """Wait until each exporter was tried `most` times."""
        for thread in self._threads:
            thread.join()

    def document(self) -> TopDocument:
        """Return what is known now."""
        with self._lock:
            return build(self._watched, self._clock.monotonic_s(), self._interval_s)

    def _follow(self, one: Watched) -> None:
        # A long interval is no reason to wait as long for an answer, nor a short one to give up at once.
        timeout_s = min(LONGEST_S, max(2.0, self._interval_s))
        tries = 0
        next_s = self._clock.monotonic_s()
        while not self._stopped.is_set():
            try:
                reading, error = read_exporter(one.url, WANTED, timeout_s, self._way), ""
            except KvdiagError as failure:
                reading, error = None, str(failure)
            with self._lock:
                one.error = error
                if reading is not None:
                    one.track.add(reading)
                    self.answers += 1
                self.readings += 1
            tries += 1
            if self._most is not None and (tries >= self._most or reading is None):
                return
            now_s = self._clock.monotonic_s()
            next_s = max(next_s + self._interval_s, now_s)
            self._stopped.wait(next_s - now_s)
