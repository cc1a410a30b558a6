"""Adds up what the kernel's histograms grow by, by engine: their rows are by thread, whose ids are used again."""

import errno
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection

from kvdiag_exporters.catalog import Buckets
from kvdiag_exporters.kernel_calls.calls import shown
from kvdiag_exporters.kernel_calls.hist import Entry
from kvdiag_exporters.kernel_calls.session import Reading

EXPONENTS = range(11, 35)
"""Buckets end at 2^11 ns (2 us) to 2^34 ns (17 s): the kernel's own, powers of two of a nanosecond."""
BOUNDS = tuple(2**exponent / 1e9 for exponent in EXPONENTS)

_Row = tuple[str, tuple[tuple[str, int], ...]]


class Totals:
    """Everything since the start, over all sessions."""

    def __init__(self) -> None:
        self.failures: Counter[tuple[str, str, str]] = Counter()
        """By engine, call and error."""
        self.pinned_bytes: Counter[str] = Counter()
        """By engine."""
        self._counts: dict[tuple[str, str], list[int]] = {}
        self._sums_ns: Counter[tuple[str, str]] = Counter()
        self._seen: dict[_Row, Entry] = {}
        self._measured: Counter[str] = Counter()
        self._lost: dict[str, int] = {}
        self._lost_before: Counter[str] = Counter()
        self._calls: dict[str, str] = {}

    def without(self, engines: Collection[str]) -> "Totals":
        """Return the totals of an ended session to go on with, without those of some engines."""
        found = Totals()
        found.failures = Counter({key: one for key, one in self.failures.items() if key[0] not in engines})
        found.pinned_bytes = Counter({key: one for key, one in self.pinned_bytes.items() if key not in engines})
        found._counts = {key: counts for key, counts in self._counts.items() if key[0] not in engines}
        found._sums_ns = Counter({key: one for key, one in self._sums_ns.items() if key[0] not in engines})
        found._lost_before = self._lost_before + Counter(self._lost)
        found._calls = dict(self._calls)
        return found

    def begin(self, engine: str, call: str) -> None:
        """Show a call of an engine before the first one, as zero."""
        self._counts.setdefault((engine, call), [0] * (len(BOUNDS) + 1))

    def add(self, reading: Reading, owner: Callable[[int], str]) -> None:
        """Add what the reading has more than the one before; `owner` gives the engine of a thread."""
        self._calls[reading.function] = reading.call
        for entry in reading.worked.entries:
            more = self._more(reading.function, entry)
            if more is None:
                continue
            engine, key = self._place(reading, more, owner)
            self.begin(*key)
            self._counts[key][bisect_left(EXPONENTS, more.keys["ns"])] += more.hits
            self._sums_ns[key] += more.sums["ns"]
            if "bytes" in more.sums:
                self.pinned_bytes[engine] += more.sums["bytes"]
        for entry in reading.failed.entries:
            more = self._more(reading.function, entry)
            if more is not None:
                _, key = self._place(reading, more, owner)
                error = errno.errorcode.get(-more.keys["ret"], str(more.keys["ret"]))
                self.failures[(*key, error)] += more.hits
        lost = reading.worked.dropped + reading.failed.dropped
        if reading.returned is not None:
            lost = reading.returned - self._measured[reading.function]
        self._lost[reading.function] = max(lost, self._lost.get(reading.function, 0))

    def emptied(self, function: str) -> None:
        """Take it that a function's histograms begin at zero again."""
        self._seen = {row: entry for row, entry in self._seen.items() if row[0] != function}

    def ended(self) -> None:
        """Take it that the session is over: the next one's histograms begin at zero."""
        self._lost_before.update(self._lost)
        self._lost.clear()
        self._seen.clear()
        self._measured.clear()

    def durations(self) -> dict[tuple[str, str], Buckets]:
        """Return the histograms of durations in seconds, by engine and call."""
        return {key: Buckets(BOUNDS, tuple(counts), self._sums_ns[key] / 1e9) for key, counts in self._counts.items()}

    def unmeasured(self) -> Counter[str]:
        """Return how many calls were seen to return and not measured, by call."""
        found: Counter[str] = Counter()
        for function, call in self._calls.items():
            found[call] += self._lost_before[function] + self._lost.get(function, 0)
        return found

    def _more(self, function: str, entry: Entry) -> Entry | None:
        """Return what the row has grown by; None where it has not."""
        row = (function, tuple(entry.keys.items()))
        before = self._seen.get(row)
        self._seen[row] = entry
        hits = entry.hits - (before.hits if before else 0)
        if hits <= 0:
            return None
        self._measured[function] += hits
        sums = {name: value - (before.sums[name] if before else 0) for name, value in entry.sums.items()}
        return Entry(entry.keys, hits, sums)

    def _place(self, reading: Reading, more: Entry, owner: Callable[[int], str]) -> tuple[str, tuple[str, str]]:
        engine = owner(more.keys["pid"])
        return engine, (engine, shown(reading.call, more.keys.get("state")))
