"""Without a baseline, what is usual of the offered work: how far it varies between windows of time beyond chance."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvdiag.attribution.causes.base import Load
from kvdiag.attribution.frame import Floats, Frame
from kvdiag.attribution.workload import LEAST_HITS, LostHits, turn_class
from kvdiag.model.missing import Missing

MOST_WINDOWS = 48
LEAST_WINDOWS = 4
ROWS_PER_WINDOW = 60
UPPER = 0.84
"""Standard deviations from the mean to the 80th percentile (normal distribution)."""
QUARTILE = 0.67
"""... and from the mean to the lower quartile, which stands for quiet times."""
BEYOND_CHANCE = 4.0
"""Standard deviations of the chi-square statistic (mean df, variance 2 df) from which windows differ."""


@dataclass(frozen=True, slots=True)
class Spread:
    """A ratio over windows of time: its mean, its standard deviation beyond chance, and whether that is significant."""

    mean: float
    beyond: float
    significant: bool


def windows(frame: Frame) -> NDArray[np.int64]:
    """Return the window of each row: at most 48 of equal length, of about 60 rows at least."""
    count = int(np.clip(frame.rows // ROWS_PER_WINDOW, LEAST_WINDOWS, MOST_WINDOWS))
    span = max(frame.end_s - frame.start_s, 1e-9)
    index: NDArray[np.int64] = np.minimum(
        ((frame.arrival_s - frame.start_s) / span * count).astype(np.int64), count - 1
    )
    return index


def spread(part: Floats, whole: Floats, window: NDArray[np.int64]) -> Spread:
    """Return how sum(part) / sum(whole) varies over windows, with its sampling variance taken off (ratio estimator)."""
    count = np.bincount(window)
    used = count > 1
    sums = np.bincount(window, weights=whole)
    ratio = np.bincount(window, weights=part)[used] / np.maximum(sums[used], 1e-12)
    mean = float(part.sum() / max(float(whole.sum()), 1e-12))
    rest = part - mean * whole
    chance = float(rest.var()) / count[used] / np.maximum(sums[used] / count[used], 1e-12) ** 2
    if used.sum() < LEAST_WINDOWS - 1 or (chance <= 0).any():
        return Spread(mean, 0.0, significant=False)
    squared = (ratio - mean) ** 2
    freedom = int(used.sum()) - 1
    significant = float((squared / chance).sum()) > freedom + BEYOND_CHANCE * np.sqrt(2 * freedom)
    beyond = np.sqrt(max(float(np.average(squared - chance, weights=count[used])), 0.0))
    return Spread(mean, float(beyond), bool(significant))


@dataclass(frozen=True, slots=True, eq=False)
class HitWaves:
    """Tokens computed beyond those that the good times' hit ratio leaves, and which class of turns lost hits."""

    extra: Floats
    usual: Floats
    lost: LostHits | None
    lines: tuple[str, ...]

    @property
    def load(self) -> Load:
        """By which factor misses raised the tokens to compute."""
        ratio = 1 + float(self.extra.mean()) / max(float(self.usual.mean()), 1e-9)
        return Load(ratio=max(ratio, 1e-6), error=0.0)


def hit_waves(frame: Frame) -> HitWaves | Missing:
    """Return what varies of the prefix cache's hit ratio: usual is its 80th percentile over windows, beyond chance."""
    prompt, uncached = frame.number("prompt_tokens"), frame.number("uncached_tokens")
    if prompt is None or uncached is None:
        return Missing("requests have no uncached_tokens beside prompt_tokens")
    kind, window = turn_class(frame), windows(frame)
    usual = uncached.copy()
    lost_shares: dict[int, float] = {}
    lines, moved = [], False
    for one in np.unique(kind).tolist():
        rows = kind == one
        found = spread((prompt - uncached)[rows], prompt[rows], window[rows])
        best = found.mean + (UPPER * found.beyond if found.significant else 0.0)
        moved = moved or found.significant
        usual[rows] = prompt[rows] * (1 - best)
        if best >= LEAST_HITS:
            lost_shares[one] = 1 - found.mean / best
        name = "later turns" if one else "first turns" if frame.number("turn") is not None else "all turns"
        lines.append(f"{name}: {found.mean:.1%}, in good times {best:.1%}")
    if not moved:
        return Missing("the cached share of prompt tokens varies no more than by chance")
    lost = None
    if {0, 1} <= lost_shares.keys():
        slope, error = _together(prompt - uncached, prompt, kind, window)
        later = lost_shares[1] if lost_shares[1] > 0 else lost_shares[0]
        lost = LostHits(first=slope * later, later=later, error=error * later)
    return HitWaves(extra=uncached - usual, usual=usual, lost=lost, lines=tuple(lines))


def _together(
    cached: Floats, prompt: Floats, kind: NDArray[np.int64], window: NDArray[np.int64]
) -> tuple[float, float]:
    """Return by how much first turns' hits fall, relatively, when later turns' fall (1: alike, 0: not), and its error.

    Weighted regression over windows; a lost prefix takes the same part of both.
    """
    size = int(window.max()) + 1
    relative, weight = [], np.full(size, np.inf)
    for one in (0, 1):
        rows = kind == one
        sums = [np.bincount(window[rows], weights=values[rows], minlength=size) for values in (cached, prompt)]
        relative.append(sums[0] / np.maximum(sums[1], 1e-12) / (sums[0].sum() / sums[1].sum()))
        weight = np.minimum(weight, sums[1])
    x = relative[1] - np.average(relative[1], weights=weight)
    y = relative[0] - np.average(relative[0], weights=weight)
    whole = max(float((weight * x * x).sum()), 1e-12)
    slope = float((weight * x * y).sum()) / whole
    error = np.sqrt(float((weight * (y - slope * x) ** 2).sum()) / max(size - 2, 1) / whole)
    return slope, float(error)


def arrival_waves(frame: Frame) -> Load:
    """Return the mean rate of arrivals over that of quiet times (lower quartile, Poisson noise taken off).

    engine.arrivals (unsampled) where every prefill node has it, else the rows.
    """
    nodes = frame.node_names("prefill")
    edges = np.linspace(frame.start_s, frame.end_s, MOST_WINDOWS + 1)
    counted = [frame.counters.mean("engine.arrivals", node, edges[:-1], edges[1:]) * np.diff(edges) for node in nodes]
    count = np.sum(counted, axis=0) if counted else np.full(1, np.nan)
    if np.isnan(count).any() or count.sum() <= 0:
        count = np.bincount(windows(frame)).astype(np.float64)
    squared = max(float(count.var()) / float(count.mean()) ** 2 - 1 / float(count.mean()), 0.0)
    return Load(ratio=float(np.exp(QUARTILE * np.sqrt(squared))), error=0.0)


def length_waves(frame: Frame) -> Load | Missing:
    """Return the mean tokens of prompts over those of quiet times (lower quartile over windows, noise taken off)."""
    prompt = frame.number("prompt_tokens")
    if prompt is None:
        return Missing("requests have no prompt_tokens")
    found = spread(prompt, np.ones(frame.rows), windows(frame))
    return Load(ratio=float(np.exp(QUARTILE * found.beyond / max(found.mean, 1e-9))), error=0.0)
