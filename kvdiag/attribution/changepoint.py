"""Where the incident begins, when nobody said: CUSUM over bins of TTFT less its queue, stages, and their drivers."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from kvdiag.attribution.blocks import politis_white
from kvdiag.attribution.frame import Floats
from kvdiag.derive.stages import WITHOUT_QUEUE, StageMatrix

BINS = 120
EDGE = 0.1
"""No change is looked for in the first and last tenth: there is nothing to compare it with."""
LEAST_SHARE = 0.01
"""Logarithms are taken of a stage plus 1 % of the median TTFT: stalls weigh little then, and empty stages nothing."""
THRESHOLD = 2.2
"""Of the CUSUM range over its long-run deviation; the 99.9 % point of a Brownian bridge's supremum is 1.95
(Kolmogorov), raised because up to eleven series are tried."""
RANGE_THRESHOLD = 3.0
"""Of the CUSUM's range (a stretch with two ends): 2.55 is as rare as THRESHOLD is for one (Kuiper's distribution),
raised until series without a change exceed it no more often than that one (60 simulated recordings)."""
ARRIVALS = "arrivals"
OUTSIDE_THRESHOLD = 3.0
"""Of arrivals and counters. Load comes in waves: 1.4 at most without a change of it, 6 where it became three times as
much; sent again is next to nothing until packets are lost."""
_ROUNDING = 1e-12
"""Means of equal numbers differ in their last digits: no change is smaller than this share of a series."""
LEAST_BLOCKS = 8
TYPICAL = 0.5
"""A stretch differs in its typical bin too, by half of the difference of means; a few stalls in it do not count."""
LEAST_EFFECT = 0.02
"""A change below 2 % of mean TTFT is not worth splitting the period for."""

MOST_CHANGES = 4
LEAST_ROWS = 120
"""A stretch with fewer requests is not searched for further changes."""


@dataclass(frozen=True, slots=True)
class ChangePoint:
    """From when, in wall-clock seconds, which series differs, by which statistic, and how much its mean, in seconds.

    `stop_s` is infinite unless the series went back to what it was before.
    """

    split_s: float
    series: str
    statistic: float
    change_s: float
    stop_s: float = np.inf


def strongest_change(
    stages: StageMatrix,
    arrival_s: Floats,
    counters: Mapping[str, Callable[[Floats], Floats]] = MappingProxyType({}),
    drivers: Mapping[str, Floats] = MappingProxyType({}),
) -> tuple[ChangePoint | None, ChangePoint | None]:
    """Return the change point and the strongest candidate (the same, or one that stayed below the threshold).

    The queue is left out of the series: it wanders for minutes under an unchanged load. That more requests come is a
    change point of its own, and so is what `counters` tell, each of which gives its total at any time, and `drivers`,
    one value of each request: where TTFT rose with it.
    """
    best = None
    first, span = float(arrival_s[0]), float(arrival_s[-1] - arrival_s[0])
    if span <= 0:
        return None, None
    bins = int(min(BINS, max(10, len(arrival_s) // 4)))
    index = np.minimum(((arrival_s - first) / span * bins).astype(int), bins - 1)
    count = np.bincount(index, minlength=bins)
    least = max(LEAST_SHARE * float(np.median(stages.ttft_s)), 1e-9)
    edges = first + span * np.arange(bins + 1) / bins
    grown = {name: np.maximum(np.diff(total(edges)), 0.0) for name, total in counters.items()}
    outside: dict[str, Floats] = {ARRIVALS: np.log1p(count)} | {name: np.log1p(one) for name, one in grown.items()}
    outside |= {name: _bin_means(values, index, count) for name, values in drivers.items()}
    for name in (WITHOUT_QUEUE, *(one for one in stages.names if one != "queue_s"), *outside):
        values = stages.ttft_s if name in outside else stages.series(name)
        logs = np.log(np.maximum(values, 0.0) + least)
        filled = outside[name] if name in outside else _bin_means(logs, index, count)
        found = _cusum(filled)
        if found is None:
            continue
        at, until, statistic = found
        split, stop = first + span * at / bins, first + span * until / bins if until < bins else np.inf
        inside = (arrival_s >= split) & (arrival_s < stop)
        if not 0 < inside.sum() < len(inside):
            continue
        change = float(values[inside].mean() - values[~inside].mean())
        candidate = ChangePoint(split, name, statistic, change, stop)
        if name in outside and (statistic < OUTSIDE_THRESHOLD or change < 0):
            continue
        if abs(change) >= LEAST_EFFECT * stages.ttft_s.mean() and (best is None or statistic > best.statistic):
            best = candidate
    return (best if best is not None and best.statistic > THRESHOLD else None), best


def _bin_means(values: Floats, index: NDArray[np.int64], count: NDArray[np.int64]) -> Floats:
    """Return the mean of each bin, of an empty one that of the bins."""
    means = np.bincount(index, weights=values, minlength=len(count)) / np.maximum(count, 1)
    filled: Floats = np.where(count > 0, means, means[count > 0].mean())
    return filled


def changes(stages: StageMatrix, arrival_s: Floats, first: ChangePoint) -> tuple[ChangePoint, ...]:
    """Return the change points in order of time: the first one found, and those on either side of it (bisection)."""
    found, pieces = [first], _sides(np.ones(len(arrival_s), dtype=bool), arrival_s, first)
    while pieces and len(found) < MOST_CHANGES:
        rows = pieces.pop(0)
        if rows.sum() < LEAST_ROWS:
            continue
        change, _ = strongest_change(stages.rows(rows), arrival_s[rows])
        if change is not None:
            found.append(change)
            pieces += _sides(rows, arrival_s, change)
    return tuple(sorted(found, key=lambda one: one.split_s))


def _sides(rows: NDArray[np.bool_], arrival_s: Floats, change: ChangePoint) -> list[NDArray[np.bool_]]:
    edges = (-np.inf, change.split_s, change.stop_s, np.inf)
    return [rows & (arrival_s >= begin) & (arrival_s < stop) for begin, stop in pairwise(edges)]


def _cusum(series: Floats) -> tuple[int, int, float] | None:
    """Return the bins between which the mean differs (to the end, if one change does), and the statistic.

    |CUSUM|, or for a stretch with two ends its range, over the long-run deviation around both means.
    """
    n = len(series)
    if np.ptp(series) <= _ROUNDING * np.abs(series).max():
        return None
    walk = np.concatenate([[0.0], np.cumsum(series - series.mean())])
    least = max(2, int(EDGE * n))
    at = least + int(np.abs(walk[least : n - least + 1]).argmax())
    single = (at, n, _statistic(series, at, n, abs(walk[at])))
    begin, stop = sorted((int(walk.argmax()), int(walk.argmin())))
    if begin < least or n - stop < least or stop - begin < least:
        return single
    inside, outside = series[begin:stop], np.concatenate([series[:begin], series[stop:]])
    if abs(np.median(inside) - np.median(outside)) < TYPICAL * abs(inside.mean() - outside.mean()):
        return single
    both = (begin, stop, _statistic(series, begin, stop, float(np.ptp(walk))) * THRESHOLD / RANGE_THRESHOLD)
    return max(single, both, key=lambda one: one[2])


def _statistic(series: Floats, begin: int, stop: int, height: float) -> float:
    index = np.arange(len(series))
    inside = (index >= begin) & (index < stop)
    rest = series - np.where(inside, series[inside].mean(), series[~inside].mean())
    # Of few long blocks the fitted means leave little: never less than what independent bins would show.
    length = int(np.clip(round(politis_white(rest)), 1, len(series) // LEAST_BLOCKS))
    blocks = np.convolve(rest, np.ones(length), mode="valid")
    deviation = max(float(np.sqrt(np.mean(blocks**2) / length)), float(rest.std()))
    return float(height / deviation / np.sqrt(len(series))) if deviation > 0 else float("inf")


def bridge_tail(statistic: float) -> float:
    """Return P(sup |Brownian bridge| > statistic) (Kolmogorov's series)."""
    if statistic < 0.3:
        return 1.0
    k = np.arange(1, 101)
    return float(np.clip(2 * np.sum((-1.0) ** (k - 1) * np.exp(-2 * k**2 * statistic**2)), 0, 1))
