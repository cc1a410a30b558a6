"""Series of one exporter over a window: what counters and histograms grew by, resets and gaps included."""

import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from kvdiag.sources.exposition import Labels, Reading
from kvdiag.top.names import RESTART

Key = tuple[str, Labels]


@dataclass(frozen=True, slots=True)
class Grown:
    """One histogram over the window: upper bounds with what each bucket alone grew by, the sum, and the count."""

    buckets: tuple[tuple[float, float], ...]
    sum: float
    count: float

    def quantile(self, q: float) -> float | None:
        """Return the quantile by linear interpolation within its bucket, as Prometheus's histogram_quantile does.

        None where nothing was counted; the greatest finite bound where it lies above that.
        """
        if self.count <= 0 or not self.buckets:
            return None
        wanted, below, low = q * self.count, 0.0, 0.0
        for bound, grown in self.buckets:
            if grown > 0 and below + grown >= wanted:
                return low if math.isinf(bound) else low + (bound - low) * (wanted - below) / grown
            below += grown
            low = low if math.isinf(bound) else bound
        return low

    def __add__(self, other: "Grown") -> "Grown":
        merged = dict(self.buckets)
        for bound, grown in other.buckets:
            merged[bound] = merged.get(bound, 0.0) + grown
        return Grown(tuple(sorted(merged.items())), self.sum + other.sum, self.count + other.count)


@dataclass(slots=True)
class Track:
    """What was read of one exporter; `add` each reading in order."""

    window_s: float
    restarts: int = 0
    _last: dict[Key, float] = field(default_factory=dict)
    _total: dict[Key, float] = field(default_factory=dict)
    _history: deque[tuple[float, dict[str, dict[Labels, float]]]] = field(default_factory=deque)
    _gauges: dict[str, dict[Labels, float]] = field(default_factory=dict)
    _newest: Reading | None = None

    @property
    def newest(self) -> Reading | None:
        return self._newest

    @property
    def elapsed_s(self) -> float | None:
        """Seconds that growth is over; None before the second reading."""
        return self._history[-1][0] - self._history[0][0] if len(self._history) > 1 else None

    def add(self, reading: Reading) -> None:
        """Take up a reading. A counter that fell was begun anew: what it shows is what it grew by.

        A series that is new has no growth yet: what it had counted before may be of any time.
        """
        totals: dict[str, dict[Labels, float]] = {}
        gauges: dict[str, dict[Labels, float]] = {}
        anew = self._begun_anew(reading)
        for name, labels, value in reading.points:
            kind = reading.kinds.get(name, "")
            if kind in ("gauge", "unknown", ""):
                gauges.setdefault(name, {})[labels] = value
                continue
            key = (name, labels)
            before = self._last.get(key)
            if before is not None:
                step = value if value < before or _whole(key, kind) in anew else value - before
                self._total[key] = self._total.get(key, 0.0) + step
            self._last[key] = value
            totals.setdefault(name, {})[labels] = self._total.setdefault(key, 0.0)
        self.restarts += (RESTART, ()) in anew
        self._gauges, self._newest = gauges, reading
        self._history.append((reading.monotonic_s, totals))
        while len(self._history) > 2 and reading.monotonic_s - self._history[1][0] >= self.window_s:
            self._history.popleft()

    def _begun_anew(self, reading: Reading) -> set[Key]:
        """Return the counters and the whole histograms of which any part fell."""
        return {
            _whole((name, labels), kind)
            for name, labels, value in reading.points
            if (kind := reading.kinds.get(name, "")) in ("counter", "histogram")
            and value < self._last.get((name, labels), value)
        }

    def gauges(self, name: str) -> Iterator[tuple[Mapping[str, str], float]]:
        """Yield labels and value of every series of a gauge in the newest reading."""
        for labels, value in self._gauges.get(name, {}).items():
            yield dict(labels), value

    def growth(self, name: str) -> Iterator[tuple[Mapping[str, str], float | None]]:
        """Yield labels and growth over the window of every series of a counter; None before the second reading."""
        if not self._history:
            return
        first, newest = self._history[0][1], self._history[-1][1]
        before = first.get(name, {})
        for labels, total in newest.get(name, {}).items():
            yield dict(labels), total - before.get(labels, 0.0) if len(self._history) > 1 else None

    def rates(self, name: str) -> Iterator[tuple[Mapping[str, str], float | None]]:
        """Yield labels and rate per second of every series of a counter."""
        elapsed_s = self.elapsed_s
        for labels, grown in self.growth(name):
            yield labels, None if grown is None or not elapsed_s else grown / elapsed_s

    def histograms(self, name: str) -> Iterator[tuple[Mapping[str, str], Grown | None]]:
        """Yield labels (without `le`) and growth of every series of a histogram."""
        parts: dict[Labels, dict[str, object]] = {}
        for labels, grown in self.growth(f"{name}_bucket"):
            rest = tuple(sorted((key, text) for key, text in labels.items() if key != "le"))
            parts.setdefault(rest, {})[labels["le"]] = grown
        sums = {tuple(sorted(labels.items())): grown for labels, grown in self.growth(f"{name}_sum")}
        for rest, cumulative in parts.items():
            yield dict(rest), _grown(cumulative, sums.get(rest))


def _whole(key: Key, kind: str) -> Key:
    """Return what resets as one: a counter's own series, a histogram with all its parts."""
    name, labels = key
    if kind != "histogram":
        return key
    return name.rpartition("_")[0], tuple(label for label in labels if label[0] != "le")


def _grown(cumulative: Mapping[str, object], total: float | None) -> Grown | None:
    found: list[tuple[float, float]] = []
    below = 0.0
    for bound, grown in sorted((float(text), grown) for text, grown in cumulative.items() if isinstance(grown, float)):
        found.append((bound, max(0.0, grown - below)))
        below = max(below, grown)
    return Grown(tuple(found), total or 0.0, below) if found else None


def added(values: Sequence[float | None]) -> float | None:
    """Return the sum of what was observed; None where nothing was."""
    present = [one for one in values if one is not None]
    return sum(present) if present else None
