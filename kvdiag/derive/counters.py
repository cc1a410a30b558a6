"""Rates of counters and averages of gauges over any interval, per node, with counter resets handled."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from kvdiag.model.bundle import BundleEvent, CounterSeries, MetricInfo

Floats = NDArray[np.float64]


def unwrapped(value: Floats) -> Floats:
    """Return a cumulative counter without its resets: after a drop, counting went on from zero."""
    steps = np.diff(value, prepend=value[:1])
    return np.cumsum(np.where(steps < 0, value, steps))


class CounterBank:
    """Every series as a cumulative curve, so that a mean rate over [start, stop] is one difference.

    A counter's curve is its unwrapped value, a gauge's the time integral of its value; curves of a node's devices
    are added for counters, averaged for gauges.
    """

    def __init__(self, series: Iterable[CounterSeries], metrics: Mapping[str, MetricInfo]) -> None:
        self._curves: dict[tuple[str, str], list[tuple[Floats, Floats]]] = {}
        self._gauges = {name for name, info in metrics.items() if info.kind == "gauge"}
        for one in series:
            if len(one.time_s) < 2:
                continue
            if one.metric in self._gauges:
                held = np.diff(one.time_s) * (one.value[1:] + one.value[:-1]) / 2
                curve = np.concatenate([[0.0], np.cumsum(held)])
            else:
                curve = unwrapped(one.value)
            self._curves.setdefault((one.metric, one.node), []).append((one.time_s, curve))

    def add_events(self, metric: str, events: Iterable[BundleEvent], weight: str = "") -> None:
        """Add a counter made of events (their number, or the sum of their `weight`) where no series has it."""
        if any(name == metric for name, _ in self._curves):
            return
        by_node: dict[str, list[tuple[float, float]]] = {}
        for event in events:
            amount = 1.0 if not weight else getattr(event, weight)
            if event.node is not None and amount is not None:
                by_node.setdefault(event.node, []).append((event.time_s, amount))
        for node, points in by_node.items():
            time_s, amounts = (np.array(column) for column in zip(*sorted(points), strict=True))
            edges = np.concatenate([[time_s[0] - 1e6], time_s, [time_s[-1] + 1e6]])
            self._curves[metric, node] = [(edges, np.concatenate([[0.0], np.cumsum(amounts), [amounts.sum()]]))]

    def nodes(self, metric: str) -> tuple[str, ...]:
        """Return the nodes that have the metric, sorted."""
        return tuple(sorted(node for name, node in self._curves if name == metric))

    def mean(self, metric: str, node: str, start_s: Floats | float, stop_s: Floats | float) -> Floats:
        """Return the counter's rate per second, or the gauge's mean, over each interval; NaN where not recorded."""
        start, stop = np.broadcast_arrays(np.asarray(start_s, dtype=np.float64), np.asarray(stop_s, dtype=np.float64))
        curves = self._curves.get((metric, node))
        if not curves:
            return np.full(start.shape, np.nan)
        total = np.zeros(start.shape)
        for time_s, curve in curves:
            a, b = np.clip(start, time_s[0], time_s[-1]), np.clip(stop, time_s[0], time_s[-1])
            with np.errstate(invalid="ignore", divide="ignore"):
                total += (np.interp(b, time_s, curve) - np.interp(a, time_s, curve)) / np.where(b > a, b - a, np.nan)
        return total / len(curves) if metric in self._gauges else total

    def over(self, metric: str, node: str, start_s: float, stop_s: float) -> float:
        """Return `mean` of one interval; NaN where not recorded."""
        curves = self._curves.get((metric, node))
        if not curves:
            return float("nan")
        total = 0.0
        for time_s, curve in curves:
            a, b = (min(max(one, float(time_s[0])), float(time_s[-1])) for one in (start_s, stop_s))
            if not b > a:
                return float("nan")
            low, high = np.interp((a, b), time_s, curve).tolist()
            total += (high - low) / (b - a)
        return total / len(curves) if metric in self._gauges else total

    def per_row(
        self, metric: str, names: Sequence[str], codes: NDArray[np.int32], start_s: Floats, stop_s: Floats
    ) -> Floats:
        """Return `mean` for each row at its own node (`names[codes[i]]`; NaN where the row has none)."""
        values = np.full(len(codes), np.nan)
        for code, node in enumerate(names):
            rows = codes == code
            if rows.any():
                values[rows] = self.mean(metric, node, start_s[rows], stop_s[rows])
        return values
