"""The stream of per-request records: read once from every engine's file, given to everyone who asked for it."""

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from kvdiag.model.missing import Missing
from kvdiag.model.transfer import TransferRecord
from kvdiag.sources.records import READ_BYTES, RecordFollower
from kvdiag_exporters.precedence import Precedence

_log = logging.getLogger(__name__)

REMEMBERED = 100_000
"""How many request ids are remembered to recognise a record that comes twice (about 15 MB)."""

FOLLOW_EVERY_S = 0.1
PIECE_BYTES = 32 << 10
"""Read in one go beside scrapes: a hundred records, 6 ms."""

Sink = Callable[[Sequence[TransferRecord]], None]


class RecordStream:
    """Follows files of records and hands each request's record to every sink once.

    Counts: `duplicates`, records of a request that was seen before; `lost_lines`, what the recorder could not write;
    `followers` count lines of their own. `followed` says whether a thread reads on beside the collections.
    """

    def __init__(self) -> None:
        self.followers: list[RecordFollower] = []
        self.duplicates = 0
        self.lost_lines = 0
        self.missing: tuple[str, ...] = ()
        self.followed = False
        self._sinks: list[Sink] = []
        self._lock = threading.Lock()
        self._told: set[Path] = set()
        self._known: set[int] = set()
        self._order: deque[int] = deque()
        self._aside: dict[Path, RecordFollower] = {}
        self._invalid_before = 0

    def follow(self, path: Path) -> None:
        """Add a file; the same file named twice is followed once."""
        if path not in [one.path for one in self.followers]:
            self.followers.append(self._aside.pop(path) if path in self._aside else RecordFollower(path))

    def begin_anew(self) -> None:
        """Forget whom to follow and whom to tell; files that are followed again go on where reading ended."""
        with self._lock:
            self._aside |= {one.path: one for one in self.followers}
            self.followers = []
            self._sinks = []
            self.followed = False

    def settle(self) -> None:
        """Close the files that nobody asked for again since `begin_anew`."""
        with self._lock:
            for one in self._aside.values():
                self._invalid_before += one.invalid
                one.close()
            self._aside = {}

    @property
    def invalid(self) -> int:
        """Lines that were no record, also those of files that are no longer followed."""
        return self._invalid_before + sum(one.invalid for one in (*self.followers, *self._aside.values()))

    def add_sink(self, sink: Sink) -> None:
        """Add a receiver; it is called with each batch of new records, by one thread at a time."""
        self._sinks.append(sink)

    def remember(self, request_id: str) -> bool:
        """Return whether this request is new, and remember it."""
        key = hash(request_id)
        if key in self._known:
            return False
        self._known.add(key)
        self._order.append(key)
        if len(self._order) > REMEMBERED:
            self._known.discard(self._order.popleft())
        return True

    def poll(self, most_bytes: int = READ_BYTES) -> int:
        """Read what was appended since the last call, at most so much of each file, and give it to the sinks; return
        how many records were read.
        """
        count = 0
        with self._lock:
            missing = []
            for follower in self.followers:
                records = follower.read(most_bytes)
                self._tell_invalid(follower)
                if isinstance(records, Missing):
                    missing.append(records.missing)
                    continue
                count += len(records)
                self._give(records)
            self.missing = tuple(missing)
        return count

    def give(self, records: Sequence[TransferRecord]) -> None:
        """Hand on records that come from no file, each request once like those of files."""
        with self._lock:
            self._give(records)

    def _give(self, records: Sequence[TransferRecord]) -> None:
        fresh = [record for record in records if self.remember(record.request_id)]
        self.duplicates += len(records) - len(fresh)
        if fresh:
            for sink in self._sinks:
                sink(fresh)

    def _tell_invalid(self, follower: RecordFollower) -> None:
        """Log the first line of a file that is no record, once: the others are only counted."""
        if follower.invalid and follower.path not in self._told:
            self._told.add(follower.path)
            _log.warning("%s; further lines that are no record are only counted", follower.first_error)

    def follow_on(self, precedence: Precedence, stop: threading.Event) -> None:
        """Read on until `stop`, in pieces of a few milliseconds between which scrapes go first."""
        self.followed = True
        wait_s = 0.0
        while not stop.wait(wait_s):
            precedence.give_way()
            try:
                self.poll(PIECE_BYTES)
                wait_s = 0.0 if self.backlog_bytes() > 0 else FOLLOW_EVERY_S
            except Exception:  # what fails here fails in the collection as well, and is told there
                wait_s = FOLLOW_EVERY_S

    def drain(self, until: Callable[[], bool]) -> None:
        """Read on until no file has anything more, or `until()` says that the time is over."""
        self.poll()
        while self.backlog_bytes() > 0 and not until():
            self.poll()

    def backlog_bytes(self) -> int:
        """Return how many bytes of the files have not been read yet."""
        with self._lock:
            return sum(one.backlog_bytes() for one in self.followers)
