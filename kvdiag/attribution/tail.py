"""By how much a quantile of TTFT changed between the two periods, with its block-bootstrap interval."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvdiag.attribution.blocks import Moments
from kvdiag.attribution.frame import Frame

Floats = NDArray[np.float64]

BUCKETS = 512
"""Logarithmic buckets between the smallest and the largest TTFT: at four orders of magnitude 1.8 % each."""
TAIL = 0.99


@dataclass(frozen=True, slots=True)
class TailChange:
    """Seconds: the 99th percentile before, its change, and the 90 % interval of the change."""

    before_s: float
    change_s: float
    low_s: float
    high_s: float


def tail_change(frame: Frame, blocks: list[Moments], replicates: int, random: np.random.Generator) -> TailChange:
    """Return the change of the 99th percentile, resampled by the same blocks as the moments of the two periods."""
    total = np.maximum(frame.stages.ttft_s, 1e-9)
    low, high = float(np.log(total.min())), float(np.log(total.max()))
    edges = np.exp(np.linspace(low, high, BUCKETS + 1))
    step = max((high - low) / BUCKETS, 1e-12)
    bucket = np.minimum(((np.log(total) - low) / step).astype(np.int64), BUCKETS - 1)
    drawn, exact = [], []
    for which, one in zip((False, True), blocks, strict=True):
        rows = frame.incident == which
        bins = len(one.gram)
        index = np.minimum((frame.clock(which) / one.bin_s).astype(np.int64), bins - 1)
        counts = np.bincount(index * BUCKETS + bucket[rows], minlength=bins * BUCKETS).reshape(bins, BUCKETS)
        cumulative = np.cumsum(one.weights(replicates, random) @ counts, axis=1)
        at = (cumulative < TAIL * cumulative[:, -1:]).sum(axis=1)
        drawn.append(edges[np.minimum(at + 1, BUCKETS)])
        exact.append(float(np.quantile(frame.stages.ttft_s[rows], TAIL)))
    ends = np.quantile(drawn[1] - drawn[0], [0.05, 0.95])
    return TailChange(exact[0], exact[1] - exact[0], float(ends[0]), float(ends[1]))
