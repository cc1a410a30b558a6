"""Intervals of a median that assume nothing about how the samples are distributed."""

import math
from collections.abc import Sequence
from typing import Literal

from kvdiag.model.probe_judgement import Metric

FEWEST_SAMPLES = 5
"""Below it not even the range of all samples covers the median with the wanted probability (4: 87.5 %)."""
COVERAGE = 0.93


def median(samples: Sequence[float]) -> float:
    """Return the middle of at least one sample; of an even number, the mean of the middle two."""
    ordered = sorted(samples)
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def median_interval(samples: Sequence[float]) -> tuple[float, float] | None:
    """Return the bounds of the true median, or None with fewer than FEWEST_SAMPLES.

    The k-th smallest and k-th largest of n samples enclose the median with probability 1 - 2·P(B(n, 1/2) < k)
    (the sign test's interval: Conover, Practical Nonparametric Statistics, section 3.2). The largest k that keeps
    COVERAGE is taken; five samples give their range, and 93.75 %.
    """
    count = len(samples)
    if count < FEWEST_SAMPLES:
        return None
    ordered = sorted(samples)
    inside, tail = 1, 0.5**count
    for rank in range(2, count // 2 + 1):
        tail += math.comb(count, rank - 1) * 0.5**count
        if 1 - 2 * tail < COVERAGE:
            break
        inside = rank
    return ordered[inside - 1], ordered[count - inside]


def metric(
    name: str,
    unit: Literal["bytes_per_second", "seconds", "ratio", "count"],
    better: Literal["higher", "lower"],
    samples: Sequence[float],
) -> Metric:
    """Return the median of at least one sample with its interval."""
    low, high = median_interval(samples) or (None, None)
    return Metric(name=name, unit=unit, better=better, value=median(samples), low=low, high=high, samples=len(samples))
