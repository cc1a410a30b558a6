"""The exact split of TTFT variance over stages: law of total covariance over the two periods."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

ROUNDING = 1e-9
"""A standard deviation below that share of the mean is what adding a million equal numbers leaves."""


@dataclass(frozen=True, slots=True, eq=False)
class VarianceSplit:
    """Seconds squared; `within[s] + between[s]` summed over stages s is `variance`, up to rounding."""

    variance: float
    within: Floats
    between: Floats

    @property
    def share(self) -> Floats:
        """Each stage's share of the variance, adding up to 1; zeros where nothing varies."""
        if self.variance <= 0:
            return np.zeros_like(self.within)
        return (self.within + self.between) / self.variance


def split_variance(seconds: Floats, incident: NDArray[np.bool_]) -> VarianceSplit:
    """Split Var(T), T the row sums of `seconds`, over its columns.

    Var(T) = sum over stages s of Cov(s, T), and Cov(s, T) = E[Cov(s, T | period)] + Cov(E[s | period], E[T | period])
    (law of total covariance; periods: baseline and incident; population moments, so that the identity is exact).
    """
    total = seconds.sum(axis=1)
    within = np.zeros(seconds.shape[1])
    between = np.zeros(seconds.shape[1])
    mean, total_mean = seconds.mean(axis=0), float(total.mean())
    for rows in (~incident, incident):
        weight = float(rows.mean())
        if weight == 0:
            continue
        part, part_total = seconds[rows], total[rows]
        part_mean, part_total_mean = part.mean(axis=0), float(part_total.mean())
        within += weight * ((part - part_mean) * (part_total - part_total_mean)[:, None]).mean(axis=0)
        between += weight * (part_mean - mean) * (part_total_mean - total_mean)
    variance = float((within + between).sum())
    if variance <= (ROUNDING * total_mean) ** 2:
        variance, within, between = 0.0, np.zeros_like(within), np.zeros_like(between)
    return VarianceSplit(variance=variance, within=within, between=between)
