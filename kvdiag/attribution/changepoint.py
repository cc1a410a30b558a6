"""Where the incident begins, when nobody said: CUSUM over time bins of TTFT without its queue, and of every stage."""

from dataclasses import dataclass

import numpy as np

from kvdiag.attribution.blocks import politis_white
from kvdiag.attribution.frame import Floats
from kvdiag.derive.stages import StageMatrix

BINS = 120
EDGE = 0.1
"""No change is looked for in the first and last tenth: there is nothing to compare it with."""
LEAST_SHARE = 0.01
"""Logarithms are taken of a stage plus 1 % of the median TTFT: stalls weigh little then, and empty stages nothing."""
THRESHOLD = 2.2
"""Of the CUSUM range over its long-run deviation; the 99.9 % point of a Brownian bridge's supremum is 1.95
(Kolmogorov), raised because up to eleven series are tried."""
LEAST_EFFECT = 0.02
"""A change below 2 % of mean TTFT is not worth splitting the period for."""


@dataclass(frozen=True, slots=True)
class ChangePoint:
    """The split in wall-clock seconds, the series that shows it, its statistic, and its change of mean in seconds."""

    split_s: float
    series: str
    statistic: float
    change_s: float


def strongest_change(stages: StageMatrix, arrival_s: Floats) -> tuple[ChangePoint | None, ChangePoint | None]:
    """Return the change point and the strongest candidate (the same, or one that stayed below the threshold).

    The queue is left out of the series: it wanders for minutes under an unchanged load.
    """
    best = None
    first, span = float(arrival_s[0]), float(arrival_s[-1] - arrival_s[0])
    if span <= 0:
        return None, None
    bins = int(min(BINS, max(10, len(arrival_s) // 4)))
    index = np.minimum(((arrival_s - first) / span * bins).astype(int), bins - 1)
    count = np.bincount(index, minlength=bins)
    queue = stages.stage("queue_s")
    least = max(LEAST_SHARE * float(np.median(stages.ttft_s)), 1e-9)
    series = {"ttft_s without queue_s": stages.ttft_s - (0 if queue is None else queue)}
    series |= {name: stages.seconds[:, i] for i, name in enumerate(stages.names) if name != "queue_s"}
    for name, values in series.items():
        logs = np.log(np.maximum(values, 0.0) + least)
        means = np.bincount(index, weights=logs, minlength=bins) / np.maximum(count, 1)
        filled = np.where(count > 0, means, means[count > 0].mean())
        found = _cusum(filled)
        if found is None:
            continue
        at, statistic = found
        split = first + span * at / bins
        change = float(values[arrival_s >= split].mean() - values[arrival_s < split].mean())
        candidate = ChangePoint(split, name, statistic, change)
        if abs(change) >= LEAST_EFFECT * stages.ttft_s.mean() and (best is None or statistic > best.statistic):
            best = candidate
    return (best if best is not None and best.statistic > THRESHOLD else None), best


def _cusum(series: Floats) -> tuple[int, float] | None:
    """Return the bin after which the mean changes most, and |CUSUM| over the long-run deviation around both means."""
    n = len(series)
    walk = np.cumsum(series - series.mean())
    low, high = max(2, int(EDGE * n)), n - max(2, int(EDGE * n))
    at = low + int(np.abs(walk[low - 1 : high]).argmax())
    rest = series - np.where(np.arange(n) < at, series[:at].mean(), series[at:].mean())
    length = max(1, round(politis_white(rest)))
    blocks = np.convolve(rest, np.ones(length), mode="valid")
    deviation = float(np.sqrt(np.mean(blocks**2) / length))
    if deviation <= 0:
        return None if np.ptp(series) <= 0 else (at, float("inf"))
    return at, float(np.abs(walk[at - 1]) / deviation / np.sqrt(n))


def bridge_tail(statistic: float) -> float:
    """Return P(sup |Brownian bridge| > statistic) (Kolmogorov's series)."""
    if statistic < 0.3:
        return 1.0
    k = np.arange(1, 101)
    return float(np.clip(2 * np.sum((-1.0) ** (k - 1) * np.exp(-2 * k**2 * statistic**2)), 0, 1))
