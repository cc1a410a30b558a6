"""Between receivers and joiner: exports wait here, in bounded memory, for one thread that stands back for scrapes."""

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice

from kvdiag.model.span import Span
from kvdiag_exporters.precedence import Precedence

_log = logging.getLogger(__name__)
MOST_BYTES = 8 << 20
"""Of exports that wait, as they came: a second of 10,000 spans; decoded ones take about three times as much."""
SLICE = 64
"""Spans read in one go, 2 ms."""

Take = Callable[[Iterable[Span]], None]


class Intake:
    """`offer` takes an export where there is room; `refused` counts the spans of those that found none."""

    def __init__(self, take: Take, precedence: Precedence, most_bytes: int = MOST_BYTES) -> None:
        self.refused = 0
        self._take, self._precedence, self._most_bytes = take, precedence, most_bytes
        self._waiting: deque[tuple[Iterable[Span], int, int]] = deque()
        self._bytes = 0
        self._changed = threading.Condition()
        self._stop = False
        self._thread = threading.Thread(target=self._run, name="intake", daemon=True)

    def offer(self, spans: Iterable[Span], size: int, count: int) -> bool:
        """Return whether the spans will be read; `size` is that of the export in bytes, `count` that of its spans.

        Where it is False the sender keeps them, and is to try again. One export always finds room.
        """
        with self._changed:
            if self._stop or (self._waiting and self._bytes + size > self._most_bytes):
                self.refused += count
                return False
            self._waiting.append((spans, size, count))
            self._bytes += size
            self._changed.notify()
        return True

    def start(self) -> None:
        self._thread.start()

    def stop(self, within_s: float) -> None:
        """Take no more, and read what waits, in so much time at most; what is left is told, and lost."""
        with self._changed:
            self._stop = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join(within_s)
        with self._changed:
            left = sum(count for *_, count in self._waiting)
        if left:
            _log.warning("about %d spans that were taken in were not read before the end", left)

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._waiting and not self._stop:
                    self._changed.wait()
                if not self._waiting:
                    return
                spans, size, _ = self._waiting[0]
            try:
                for part in _slices(iter(spans)):
                    self._precedence.give_way()
                    self._take(part)
            except Exception:  # one export that cannot be read must not end the reading of all
                _log.exception("an export could not be read")
            with self._changed:
                self._waiting.popleft()
                self._bytes -= size


def _slices(spans: Iterator[Span]) -> Iterator[list[Span]]:
    while part := list(islice(spans, SLICE)):
        yield part
