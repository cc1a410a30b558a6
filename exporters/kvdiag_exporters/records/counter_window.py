"""The last while of what the recorder would write of the collections, as series for the attribution."""

import threading
from array import array
from bisect import bisect_left
from collections.abc import Mapping, Sequence

import numpy as np

from kvdiag.model.bundle import CounterSeries, MetricInfo
from kvdiag_exporters.catalog import Sample
from kvdiag_exporters.recorder import chosen, number

MOST_SERIES = 1024
"""About 200 kB each of an hour at one a second are too many for more: 8 ports have some 100."""
MOST_POINTS = 4096
BACK_S = 60.0
"""A clock that is set back by more takes the points of the time to come with it: until then no other would be kept."""


class CounterWindow:
    """Series by node, device and name, the newest MOST_POINTS of each; `unkept` counts samples of further series."""

    def __init__(self, engines: Mapping[str, str], nodes: Mapping[str, str]) -> None:
        self.unkept = 0
        self._engines, self._nodes = engines, nodes
        self._series: dict[tuple[str, str | None, str], tuple[array[float], array[float]]] = {}
        self._metrics: dict[str, MetricInfo] = {}
        self._lock = threading.Lock()

    def go_on(self, before: "CounterWindow") -> None:
        """Begin with what the window of before a reload has of nodes that are still recorded."""
        self.unkept, self._metrics = before.unkept, dict(before._metrics)
        with before._lock:
            self._series = {key: series for key, series in before._series.items() if key[0] in self._nodes}

    def observe(self, samples: Sequence[Sample], time_s: float) -> None:
        """Keep the samples of one collection, at its wall-clock time."""
        sums: dict[tuple[str, str | None, str], float] = {}
        for sample, recorded, node in chosen(samples, self._engines, self._nodes):
            labels = dict(zip(sample.metric.labels, sample.labels, strict=True))
            device = "/".join(labels[name] for name in ("device", "port") if name in labels) or None
            key = (node, device, recorded.name)
            sums[key] = sums.get(key, 0.0) + number(sample.value, recorded) * recorded.scale
            kind = "gauge" if sample.metric.kind == "gauge" else "counter"
            self._metrics.setdefault(recorded.name, MetricInfo(kind=kind, unit=recorded.unit))
        with self._lock:
            for key, value in sums.items():
                if key not in self._series and len(self._series) >= MOST_SERIES:
                    self.unkept += 1
                    continue
                times, values = self._series.setdefault(key, (array("d"), array("d")))
                if len(times) >= 2 * MOST_POINTS:
                    del times[:MOST_POINTS], values[:MOST_POINTS]
                if times and times[-1] > time_s + BACK_S:
                    kept = bisect_left(times, time_s)
                    del times[kept:], values[kept:]
                if not times or time_s > times[-1]:
                    times.append(time_s)
                    values.append(value)

    def series(self, since_s: float) -> tuple[tuple[CounterSeries, ...], Mapping[str, MetricInfo]]:
        """Return the series since then, and what is known of their metrics."""
        found = []
        with self._lock:
            for (node, device, name), (times, values) in self._series.items():
                first = bisect_left(times, since_s)
                if first < len(times):
                    time_s, value = np.array(times[first:]), np.array(values[first:])
                    found.append(CounterSeries(node=node, device=device, metric=name, time_s=time_s, value=value))
            return tuple(found), dict(self._metrics)
