"""The counters that a verdict's evidence cites, as curves over the recording."""

import re

import numpy as np

from kvdiag.model.bundle import Bundle, CounterSeries
from kvdiag.model.diagnosis import AttributedCause, Diagnosis
from kvdiag.model.overview import CounterChart, CounterCurve

MOST_METRICS = 6
MOST_CURVES = 6
MOST_CURVE_POINTS = 240
LEAST_MOVED = 0.05
"""Of the largest range: series of nodes that nothing cites and that moved less are left out."""
MOST_UNNAMED = 3
_CITED = re.compile(r"^counters, ([\w.]+)")


def cited_counters(
    bundle: Bundle, diagnosis: Diagnosis, first_s: float, within: tuple[float, float]
) -> tuple[tuple[CounterChart, ...], str | None]:
    """Return charts of the counters in the evidence of the causes that matter, the named cause's first.

    Without one, and why, where none was recorded or cited. Times are seconds since `first_s`, inside `within`.
    """
    if not bundle.series:
        return (), "the recording has no counters (counters.parquet or counters.jsonl)"
    cited: dict[str, list[str]] = {}
    for cause in _that_matter(diagnosis):
        for line in cause.evidence:
            match = _CITED.match(line.source)
            if match:
                nodes = cited.setdefault(match[1], [])
                nodes += [node for _, _, node in [line.name.partition(" @ ")] if node]
    charts = [
        chart
        for metric, nodes in list(cited.items())[:MOST_METRICS]
        if (chart := _chart(bundle, metric, nodes, first_s, within)) is not None
    ]
    if not charts:
        return (), "no cause's evidence cites a counter that was recorded at two moments"
    return tuple(charts), None


def _that_matter(diagnosis: Diagnosis) -> list[AttributedCause]:
    """Return the named cause, then those that cost a tenth of it or more; without a name the largest MOST_UNNAMED."""
    named = [one for one in diagnosis.causes if one.id == diagnosis.verdict.cause]
    others = [one for one in diagnosis.causes if one not in named]
    if not named:
        return others[:MOST_UNNAMED]
    return named + [one for one in others if one.excess_mean_s >= named[0].excess_mean_s / 10]


def _chart(
    bundle: Bundle, metric: str, nodes: list[str], first_s: float, within: tuple[float, float]
) -> CounterChart | None:
    info = bundle.metrics.get(metric)
    counts = info is None or info.kind != "gauge"
    curves = [
        (one.node not in nodes, curve)
        for one in bundle.series
        if one.metric == metric and (curve := _curve(one, counts, first_s, within)) is not None
    ]
    if not curves:
        return None
    largest = max(float(np.ptp(curve.values)) for _, curve in curves)
    moved = [
        (other, curve) for other, curve in curves if not other or float(np.ptp(curve.values)) >= LEAST_MOVED * largest
    ]
    moved.sort(key=lambda found: (found[0], -float(np.ptp(found[1].values)), found[1].series))
    kept = sorted((curve for _, curve in moved[:MOST_CURVES]), key=lambda curve: curve.series)
    unit = info.unit if info is not None else ""
    return CounterChart(metric=metric, unit=unit, counts=counts, curves=tuple(kept), left_out=len(curves) - len(kept))


def _curve(one: CounterSeries, counts: bool, first_s: float, within: tuple[float, float]) -> CounterCurve | None:
    """Return rates between readings (a reset has none) or values, as means over bins where there are too many."""
    time, value = one.time_s - first_s, one.value
    if counts:
        steps, spans = np.diff(value), np.diff(time)
        fine = (steps >= 0) & (spans > 0)
        time, value = time[1:][fine], steps[fine] / spans[fine]
    inside = (time >= within[0]) & (time <= within[1]) & np.isfinite(value)
    time, value = time[inside], value[inside]
    if len(time) < 2:
        return None
    if len(time) > MOST_CURVE_POINTS:
        edges = np.linspace(0, len(time), MOST_CURVE_POINTS + 1).astype(int)[:-1]
        sizes = np.diff(np.append(edges, len(time)))
        time, value = np.add.reduceat(time, edges) / sizes, np.add.reduceat(value, edges) / sizes
    name = one.node if one.device is None else f"{one.node} {one.device}"
    return CounterCurve(series=name, time_s=tuple(time.tolist()), values=tuple(value.tolist()))
