"""Bounded least squares for many small problems at once, by coordinate descent on their Gram matrices."""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_SWEEPS = 400
_TOLERANCE = 1e-8


def bounded_least_squares(gram: Floats, target: Floats, upper: Floats) -> Floats:
    """Minimise b'Gb/2 - h'b with 0 <= b <= upper, for a stack of (G, h) of shapes (k, m, m) and (k, m).

    Coordinate descent is exact for this convex problem; a column of zeros gets coefficient 0. Columns are scaled to
    unit diagonal first, so the tolerance is relative.
    """
    scale = np.sqrt(np.maximum(np.einsum("kii->ki", gram), 0))
    used = scale > 0
    safe = np.where(used, scale, 1.0)
    matrix = gram / (safe[:, :, None] * safe[:, None, :])
    goal = np.where(used, target / safe, 0.0)
    bound = upper * safe
    solution = np.zeros_like(goal)
    size = np.maximum(np.abs(goal).max(axis=1, initial=0), 1e-300)
    for _ in range(_SWEEPS):
        largest = np.zeros(len(goal))
        for j in range(goal.shape[1]):
            step = goal[:, j] - np.einsum("km,km->k", matrix[:, j], solution)
            new = np.where(used[:, j], np.clip(solution[:, j] + step, 0, bound[:, j]), 0.0)
            largest = np.maximum(largest, np.abs(new - solution[:, j]))
            solution[:, j] = new
        if (largest < _TOLERANCE * size).all():
            break
    bounded: Floats = np.clip(solution / safe, 0, upper)
    return bounded
