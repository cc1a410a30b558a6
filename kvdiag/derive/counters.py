"""Rates of counters and averages of gauges over any interval, per node, with counter resets handled."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from kvdiag.model.bundle import BundleEvent, CounterSeries, MetricInfo

Floats = NDArray[np.float64]
Places = tuple[NDArray[np.intp], Floats]

MOST_COMPARED = 4
"""Series that were read together share their times; a node's series are looked for among that many groups of others."""


def unwrapped(value: Floats) -> Floats:
    """Return cumulative counters (last axis: time) without their resets: after a drop, counting went on from zero."""
    steps = np.diff(value, axis=-1, prepend=value[..., :1])
    return np.cumsum(np.where(steps < 0, value, steps), axis=-1)


@dataclass(slots=True, eq=False)
class _Panel:
    """Curves of one node that were read at the same instants, one row each; `metrics[i]` is whose row i is."""

    time_s: Floats
    metrics: list[str] = field(default_factory=list)
    values: list[Floats] = field(default_factory=list)
    curves: Floats = field(default_factory=lambda: np.zeros((0, 0)))

    def finish(self, gauges: set[str]) -> None:
        """Make curves of values: unwrapped counters, gauges' time integrals."""
        raw = np.array(self.values, dtype=np.float64)
        self.values = []
        gauge = np.array([name in gauges for name in self.metrics])
        self.curves = np.zeros_like(raw)
        if gauge.any():
            held = np.diff(self.time_s) * (raw[gauge, 1:] + raw[gauge, :-1]) / 2
            self.curves[gauge, 1:] = np.cumsum(held, axis=1)
        if not gauge.all():
            self.curves[~gauge] = unwrapped(raw[~gauge])

    def places(self, at_s: Floats) -> Places:
        """Return where instants lie: the index of the reading before each, and the share of the way to the next."""
        index = np.clip(np.searchsorted(self.time_s, at_s, side="right") - 1, 0, len(self.time_s) - 2)
        before = self.time_s[index]
        share: Floats = np.clip((at_s - before) / np.maximum(self.time_s[index + 1] - before, 1e-300), 0.0, 1.0)
        return index, share

    def seconds(self, start_s: Floats, stop_s: Floats) -> Floats:
        """Return how long each interval lies within the recording, NaN where it does not."""
        first, last = self.time_s[0], self.time_s[-1]
        held = np.clip(stop_s, first, last) - np.clip(start_s, first, last)
        return np.where(held > 0, held, np.nan)


def _read(curve: Floats, at: Places) -> Floats:
    """Return curves (the last axis is time) at places between their points."""
    index, share = at
    low = curve[..., index]
    read: Floats = low + (curve[..., index + 1] - low) * share
    return read


@dataclass(slots=True, eq=False)
class NodeWindows:
    """An interval for each of `rows` rows, by the node whose counters are to be read in it."""

    rows: int
    parts: tuple[tuple[str, NDArray[np.intp], Floats, Floats], ...]
    _places: dict[int, tuple[Places, Places, Floats]] = field(default_factory=dict)

    def of(self, panel: _Panel, start_s: Floats, stop_s: Floats) -> tuple[Places, Places, Floats]:
        """Return the places of the intervals' ends in a panel, and their seconds; looked up once."""
        found = self._places.get(id(panel))
        if found is None:
            found = panel.places(start_s), panel.places(stop_s), panel.seconds(start_s, stop_s)
            self._places[id(panel)] = found
        return found


def node_windows(names: Sequence[str], codes: NDArray[np.int32], start_s: Floats, stop_s: Floats) -> NodeWindows:
    """Return the rows' intervals by their nodes, `names[codes[i]]` (a row of code -1 has none)."""
    order = np.argsort(codes, kind="stable")
    edges = np.searchsorted(codes[order], np.arange(len(names) + 1))
    parts = []
    for code, node in enumerate(names):
        rows = order[edges[code] : edges[code + 1]]
        if rows.size:
            parts.append((node, rows, start_s[rows], stop_s[rows]))
    return NodeWindows(len(codes), tuple(parts))


class CounterBank:
    """Every series as a cumulative curve, so that a mean rate over [start, stop] is one difference.

    A counter's curve is its unwrapped value, a gauge's the time integral of its value; curves of a node's devices
    are added for counters, averaged for gauges.
    """

    def __init__(self, series: Iterable[CounterSeries], metrics: Mapping[str, MetricInfo]) -> None:
        self._gauges = {name for name, info in metrics.items() if info.kind == "gauge"}
        self._panels: dict[str, list[_Panel]] = {}
        self._origins: dict[str, str] = {}
        for one in series:
            if len(one.time_s) < 2:
                continue
            panel = self._panel(one.node, one.time_s)
            panel.metrics.append(one.metric)
            panel.values.append(one.value)
        self._curves: dict[tuple[str, str], list[tuple[_Panel, int]]] = {}
        for node, panels in self._panels.items():
            for panel in panels:
                panel.finish(self._gauges)
                for row, metric in enumerate(panel.metrics):
                    self._curves.setdefault((metric, node), []).append((panel, row))

    def _panel(self, node: str, time_s: Floats) -> _Panel:
        """Return the node's panel of these instants, perhaps a new one."""
        known = self._panels.setdefault(node, [])
        for panel in known[-MOST_COMPARED:]:
            if panel.time_s is time_s or np.array_equal(panel.time_s, time_s):
                return panel
        known.append(_Panel(time_s))
        return known[-1]

    def origin(self, metric: str) -> str:
        """Return what the metric's values were read from: counters, or the events of a kind."""
        return self._origins.get(metric, "counters")

    def add_events(self, metric: str, events: Iterable[BundleEvent], kind: str) -> None:
        """Add a counter of the events of one kind where no series has it."""
        if any(name == metric for name, _ in self._curves):
            return
        self._origins[metric] = f"events of kind {kind}"
        by_node: dict[str, list[tuple[float, float]]] = {}
        for event in events:
            if event.kind == kind and event.node is not None:
                by_node.setdefault(event.node, []).append((event.time_s, 1.0))
        for node, points in by_node.items():
            time_s, amounts = (np.array(column) for column in zip(*sorted(points), strict=True))
            edges = np.concatenate([[time_s[0] - 1e6, time_s[0] - 1.0], time_s, [time_s[-1] + 1e6]])
            curve = np.concatenate([[0.0, 0.0], np.cumsum(amounts), [amounts.sum()]])
            panel = _Panel(edges, [metric], curves=curve[None])
            self._panels.setdefault(node, []).append(panel)
            self._curves[metric, node] = [(panel, 0)]

    def nodes(self, metric: str) -> tuple[str, ...]:
        """Return the nodes that have the metric, sorted."""
        return tuple(sorted(node for name, node in self._curves if name == metric))

    def every_node(self) -> tuple[str, ...]:
        """Return the nodes that have any metric."""
        return tuple(self._panels)

    def every_mean(self, node: str, start_s: Floats, stop_s: Floats) -> Iterator[tuple[str, Floats]]:
        """Yield each metric of a node with its `mean` over each interval."""
        total: dict[str, Floats] = {}
        for panel in self._panels.get(node, ()):
            held = panel.seconds(start_s, stop_s)
            rates = (_read(panel.curves, panel.places(stop_s)) - _read(panel.curves, panel.places(start_s))) / held
            for metric, rate in zip(panel.metrics, rates, strict=True):
                known = total.get(metric)
                total[metric] = rate if known is None else known + rate
        for metric, rate in total.items():
            yield metric, rate / len(self._curves[metric, node]) if metric in self._gauges else rate

    def mean(self, metric: str, node: str, start_s: Floats | float, stop_s: Floats | float) -> Floats:
        """Return the counter's rate per second, or the gauge's mean, over each interval; NaN where not recorded."""
        start, stop = np.broadcast_arrays(np.asarray(start_s, dtype=np.float64), np.asarray(stop_s, dtype=np.float64))
        curves = self._curves.get((metric, node))
        if not curves:
            return np.full(start.shape, np.nan)
        total = np.zeros(start.shape)
        for panel, row in curves:
            curve = panel.curves[row]
            moved = _read(curve, panel.places(stop)) - _read(curve, panel.places(start))
            total += moved / panel.seconds(start, stop)
        return total / len(curves) if metric in self._gauges else total

    def per_row(self, metric: str, windows: NodeWindows) -> Floats:
        """Return `mean` for each row at its own node in its own interval (NaN where the row has none)."""
        values = np.full(windows.rows, np.nan)
        for node, rows, start, stop in windows.parts:
            curves = self._curves.get((metric, node))
            if not curves:
                continue
            total = np.zeros(len(rows))
            for panel, row in curves:
                begin, end, held = windows.of(panel, start, stop)
                total += (_read(panel.curves[row], end) - _read(panel.curves[row], begin)) / held
            values[rows] = total / len(curves) if metric in self._gauges else total
        return values
