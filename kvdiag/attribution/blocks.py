"""Circular block bootstrap over time, on sums of moments so that a refit never touches the rows again."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

MOST_BINS = 240
LEAST_BIN_S = 0.25
LEAST_BLOCK_S = 1.0
"""Floor of the block length: scheduling stalls and counter intervals last up to about a second."""
LEAST_BLOCKS = 6
"""A period is never cut into fewer blocks than this, however long its correlation: below, intervals mean nothing."""


def politis_white(series: Floats) -> float:
    """Return the optimal circular block length in samples (Politis & White 2004, corrected by Patton et al. 2009)."""
    n = len(series)
    centred = series - series.mean()
    variance = float(centred @ centred) / n
    if n < 8 or variance <= 0:
        return 1.0
    longest = min(n - 1, int(np.ceil(np.sqrt(n))) + max(5, int(np.ceil(np.sqrt(np.log10(n))))))
    covariance = np.array([float(centred[: n - lag] @ centred[lag:]) / n for lag in range(longest + 1)])
    bound = 2 * np.sqrt(np.log10(n) / n)
    run = max(5, int(np.ceil(np.sqrt(np.log10(n)))))
    quiet = np.abs(covariance / variance) < bound
    lag = next((k for k in range(1, longest - run + 2) if quiet[k : k + run].all()), longest)
    width = min(2 * max(lag - 1, 1), longest)
    lags = np.arange(-width, width + 1)
    relative = np.abs(lags) / width
    window = np.where(relative <= 0.5, 1.0, 2 * (1 - relative))
    weighted = window * covariance[np.abs(lags)]
    slope, level = float((weighted * np.abs(lags)).sum()), float(weighted.sum())
    if level <= 0:
        return 1.0
    length = (2 * slope**2 / (4 / 3 * level**2)) ** (1 / 3) * n ** (1 / 3)
    return float(np.clip(length, 1, np.ceil(min(3 * np.sqrt(n), n / 3))))


@dataclass(frozen=True, slots=True, eq=False)
class Moments:
    """Per time bin, the Gram matrix of the columns over the rows of that bin."""

    gram: NDArray[np.float64]
    bin_s: float
    block_s: float

    @property
    def total(self) -> Floats:
        """The Gram matrix of all rows."""
        total: Floats = self.gram.sum(axis=0)
        return total

    def weights(self, count: int, random: np.random.Generator) -> Floats:
        """Return `count` times how often each bin is drawn, in blocks, with replacement, circularly."""
        bins = len(self.gram)
        length = max(1, round(self.block_s / self.bin_s))
        starts = random.integers(0, bins, size=(count, int(np.ceil(bins / length))))
        weight = np.zeros((count, bins))
        for offset in range(length):
            # The last block is cut so that every replicate covers exactly as many bins as the period has.
            used = starts if offset < bins - length * (starts.shape[1] - 1) else starts[:, :-1]
            rows = np.repeat(np.arange(count), used.shape[1])
            np.add.at(weight, (rows, ((used + offset) % bins).ravel()), 1.0)
        return weight

    def resample(self, count: int, random: np.random.Generator) -> Floats:
        """Return `count` Gram matrices of the period, each rebuilt from blocks drawn with replacement."""
        bins, width = self.gram.shape[:2]
        drawn: Floats = (self.weights(count, random) @ self.gram.reshape(bins, -1)).reshape(count, width, width)
        return drawn


def moments(
    columns: Floats, time_s: Floats, start_s: float, stop_s: float, watched: Floats, least_bin_s: float = LEAST_BIN_S
) -> Moments:
    """Return the bins of [start_s, stop_s] for rows sorted by time; `watched` sets the block length (its correlation).

    Block length: Politis-White on the bin means, at least LEAST_BLOCK_S and n^(1/3) bins, at most a LEAST_BLOCKS-th.
    """
    span = max(stop_s - start_s, 1e-9)
    bin_s = max(span / MOST_BINS, least_bin_s)
    bins = max(1, int(np.ceil(span / bin_s)))
    edges = np.searchsorted(time_s, start_s + bin_s * np.arange(1, bins))
    edges = np.concatenate([[0], edges, [len(time_s)]])
    width = columns.shape[1]
    gram = np.zeros((bins, width, width))
    means = np.full(bins, np.nan)
    for index in range(bins):
        rows = slice(edges[index], edges[index + 1])
        part = columns[rows]
        if len(part):
            gram[index] = part.T @ part
            means[index] = watched[rows].mean()
    filled = np.where(np.isnan(means), np.nanmean(means), means)
    length = max(politis_white(filled), bins ** (1 / 3), LEAST_BLOCK_S / bin_s)
    return Moments(gram, bin_s, bin_s * max(1.0, min(length, bins / LEAST_BLOCKS)))
