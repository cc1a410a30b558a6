"""The cost of a transfer as fixed + per descriptor + per byte, fitted to measured times."""

from collections.abc import Sequence
from itertools import combinations

import numpy as np

from kvdiag.model.probe_kv import Coefficient, CostModel

# Student's t, 97.5 % (two-sided 95 %), for 1 to 10 degrees of freedom; beyond that the normal's 1.96 is within 14 %.
_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)


def fit(points: Sequence[tuple[int, int, float]]) -> CostModel:
    """Fit (descriptors, bytes, seconds) points by least squares of the relative errors, no coefficient below 0.

    Of the fits with some coefficients set to 0, the best without a negative one is taken (non-negative least squares:
    Lawson and Hanson, 1974, chapter 23; with three unknowns all subsets are tried). Intervals are Student's, 95 %.
    """
    matrix = np.array([(1.0, count, size) for count, size, _ in points])
    times = np.array([seconds for *_, seconds in points])
    weighted = matrix / times[:, None]
    best: tuple[float, tuple[int, ...], np.ndarray] | None = None
    for number in (1, 2, 3):
        for chosen in combinations(range(3), number):
            solution, _, rank, _ = np.linalg.lstsq(weighted[:, chosen], np.ones(len(points)), rcond=1e-12)
            if rank < number or np.any(solution < 0):
                continue
            error = float(np.sum((weighted[:, chosen] @ solution - 1) ** 2))
            if best is None or error < best[0] * (1 - 1e-9):
                best = error, chosen, solution
    assert best is not None, "one positive coefficient always fits positive times"
    error, chosen, solution = best
    free = len(points) - len(chosen)
    halves = np.full(3, np.nan)
    if free > 0:
        covariance = np.linalg.pinv(weighted[:, chosen].T @ weighted[:, chosen]) * error / free
        halves[list(chosen)] = _quantile(free) * np.sqrt(np.diag(covariance))
    values = np.zeros(3)
    values[list(chosen)] = solution
    return CostModel(
        fixed_s=_coefficient(values[0], halves[0]),
        per_descriptor_s=_coefficient(values[1], halves[1]),
        per_byte_s=_coefficient(values[2], halves[2]),
        points=len(points),
    )


def predict(model: CostModel, descriptors: int, size: int) -> float:
    """Return the seconds that the model expects."""
    return model.fixed_s.value + model.per_descriptor_s.value * descriptors + model.per_byte_s.value * size


def _quantile(free: int) -> float:
    return _T[free - 1] if free <= len(_T) else 1.96


def _coefficient(value: float, half: float) -> Coefficient:
    if np.isnan(half):
        return Coefficient(value=float(value), low=None, high=None)
    return Coefficient(value=float(value), low=float(max(0.0, value - half)), high=float(value + half))
