"""Where pieces of records come together: joined by one thread's clockwork, given on, counted."""

import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from kvdiag.derive.join import Joiner
from kvdiag.derive.span_readers import Names, Reader, readers
from kvdiag.model import forward_span
from kvdiag.model.record import HandleTransfer, Piece, RequestPiece, WindowRecord
from kvdiag.model.span import Span
from kvdiag.model.transfer import TransferRecord
from kvdiag.sources.base import Clock
from kvdiag_exporters.precedence import Precedence

_log = logging.getLogger(__name__)
TICK_S = 0.25
MOST_AT_ONCE = 32
"""Requests given on in one go, some milliseconds: then a scrape may come between."""

Rows = Callable[[Sequence[TransferRecord]], None]
Pieces = Callable[[Sequence[Piece]], None]


@dataclass(slots=True)
class HubCounts:
    """Since the start: spans `read`, `foreign` ones of programs or operations that no reader knows, `invalid` ones
    that no clock can give or no reader could read; `pieces` taken in.
    """

    read: int = 0
    foreign: int = 0
    invalid: int = 0
    pieces: int = 0


class Hub:
    """Takes spans and pieces from any thread; `on_rows` and `on_pieces` are called by its own, one batch at a time.

    With `forward` set, pieces of requests are given to it instead of being joined here.
    """

    def __init__(
        self, names: Names, clock: Clock, joiner: Joiner | None = None, precedence: Precedence | None = None
    ) -> None:
        self._precedence = precedence or Precedence()
        self.counts = HubCounts()
        self.joiner = joiner or Joiner()
        self.forward: Callable[[Sequence[RequestPiece | HandleTransfer]], None] | None = None
        self._names, self._clock = names, clock
        self._readers: tuple[Reader, ...] = readers()
        self._rows: list[Rows] = []
        self._pieces: list[Pieces] = []
        self._lock = threading.Lock()
        self._told = False
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="records", daemon=True)

    def go_on(self, before: "Hub") -> None:
        """Count on, and go on waiting for what the hub of before a reload waited for."""
        self.counts = before.counts
        before.joiner.wait_s, before.joiner.settle_s = self.joiner.wait_s, self.joiner.settle_s
        self.joiner = before.joiner

    def on_rows(self, sink: Rows) -> None:
        """Add a receiver of joined requests."""
        self._rows.append(sink)

    def on_pieces(self, sink: Pieces) -> None:
        """Add a receiver of transfers and windows as they come; called by the thread that brings them."""
        self._pieces.append(sink)

    def take_spans(self, spans: Iterable[Span]) -> None:
        """Read spans; those of no known program are counted and left."""
        pieces: list[Piece] = []
        forwarded: list[Piece] = []
        read = foreign = invalid = 0
        for span in spans:
            read += 1
            if not 0 < span.start_s <= span.end_s:
                invalid += 1
                continue
            try:
                found = self._read(span)
            except Exception:  # no sender may stop the others: what cannot be read is counted
                if not self._told:
                    self._told = True
                    _log.warning("a span %r cannot be read; further ones are only counted", span.name[:64])
                _log.debug("a span cannot be read", exc_info=True)
                invalid += 1
                continue
            if found is None:
                foreign += 1
            elif span.scope == forward_span.SCOPE:
                forwarded += found
            else:
                pieces += found
        with self._lock:
            self.counts.read += read
            self.counts.foreign += foreign
            self.counts.invalid += invalid
        self.take(pieces)
        self._join(forwarded)

    def _read(self, span: Span) -> list[Piece] | None:
        """Return the pieces of a span, of the first reader that knows it; None where none does."""
        for reader in self._readers:
            found = reader(span, self._names)
            if found is not None:
                return list(found)
        return None

    def take(self, pieces: Sequence[Piece]) -> None:
        """Take pieces in; those of requests are joined, all but requests' are given on as they are."""
        if self.forward is None:
            self._join(pieces)
        else:
            with self._lock:
                self.counts.pieces += len(pieces)
            self.forward([one for one in pieces if not isinstance(one, WindowRecord) and _of_request(one)])
        others = [one for one in pieces if isinstance(one, HandleTransfer | WindowRecord)]
        if others:
            for sink in self._pieces:
                sink(others)

    def _join(self, pieces: Sequence[Piece]) -> None:
        """Join pieces here; those that another exporter forwarded go no further, and are shown where they were read."""
        now_s = self._clock.monotonic_s()
        with self._lock:
            self.counts.pieces += len(pieces)
            for piece in pieces:
                if not isinstance(piece, WindowRecord) and _of_request(piece):
                    self.joiner.add(piece, now_s)

    def tick(self) -> int:
        """Give on the requests that are due, a few at a time; return how many."""
        count, now_s = 0, self._clock.monotonic_s()
        while True:
            self._precedence.give_way()
            with self._lock:
                rows = self.joiner.take(now_s, MOST_AT_ONCE)
            count += self._give(rows)
            if len(rows) < MOST_AT_ONCE:
                return count

    def start(self) -> None:
        self._thread.start()

    def stop(self, within_s: float = 0.3, *, goes_on: bool = False) -> None:
        """Stop ticking and give on everything that is still waited for, as it is, unless another one goes on."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout=within_s)
        if not goes_on:
            with self._lock:
                rows = self.joiner.drain()
            self._give(rows)

    def _give(self, rows: Sequence[TransferRecord]) -> int:
        if rows:
            for sink in self._rows:
                sink(rows)
        return len(rows)

    def _run(self) -> None:
        while not self._stop.wait(TICK_S):
            try:
                self.tick()
            except Exception:  # a receiver that fails must not end the joining
                _log.exception("giving on joined records failed")


def _of_request(piece: RequestPiece | HandleTransfer) -> bool:
    return isinstance(piece, RequestPiece) or bool(piece.keys)
