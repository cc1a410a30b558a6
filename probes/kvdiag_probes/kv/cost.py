"""The cost of a transfer as fixed + per descriptor + per byte, fitted to measured times."""

from collections.abc import Sequence
from itertools import combinations

import numpy as np

from kvdiag.model.probe_kv import Coefficient, CostModel, Prediction

# Student's t, 97.5 % (two-sided 95 %), for 1 to 10 degrees of freedom; beyond that the normal's 1.96 is within 14 %.
_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)

_MOST_OFF = 0.25
"""A prediction further off than this share of what was measured: a straight line does not describe the transfers."""
_NEXT = "next: more --tokens lengths, more --repeats, quiet hosts"


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


def doubt(model: CostModel, predictions: Sequence[Prediction]) -> str | None:
    """Return in one line why a fit does not hold, by how much and what to do next; None where it holds.

    It does not where a prediction is off by more than a quarter, or where a coefficient had to be set to 0 and another
    is not told from 0 by its interval: the points then do not tell the three costs apart.
    """
    off = [one for one in predictions if abs(one.relative_error) > _MOST_OFF]
    if off:
        worst = max(off, key=lambda one: abs(one.relative_error))
        return (
            f"the fit does not hold: {len(off)} of {len(predictions)} predictions for {worst.tokens} tokens are off by "
            f"more than {_MOST_OFF:.0%}, at worst {worst.relative_error:+.0%} ({worst.mode}); {_NEXT}"
        )
    named = {"what is fixed": model.fixed_s, "a descriptor": model.per_descriptor_s, "a byte": model.per_byte_s}
    vague = [
        f"{name} (0 to {one.high * 1e6:.3g} µs)" for name, one in named.items() if one.low == 0 and one.high is not None
    ]
    unset = [name for name, one in named.items() if one.value == 0]
    if vague and unset:
        return (
            f"the fit does not hold: it leaves nothing for {' and '.join(unset)}, and does not tell the cost of "
            f"{' and '.join(vague)} from 0; {_NEXT}"
        )
    return None


def _quantile(free: int) -> float:
    return _T[free - 1] if free <= len(_T) else 1.96


def _coefficient(value: float, half: float) -> Coefficient:
    if np.isnan(half):
        return Coefficient(value=float(value), low=None, high=None)
    return Coefficient(value=float(value), low=float(max(0.0, value - half)), high=float(value + half))
