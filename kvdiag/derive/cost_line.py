"""A straight line through times that differ by orders of magnitude."""

from collections.abc import Sequence


def cost_line(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return (fixed seconds, seconds per unit), both at least 0, of (units, seconds) points.

    Least squares of the relative errors (weights 1/t²), so that small sizes count as much as large ones; a negative
    coefficient is set to 0 and the other fitted alone. One point gives a line through the origin.
    """
    weights = [1 / seconds**2 for _, seconds in points]
    s0 = sum(weights)
    s1 = sum(w * x for w, (x, _) in zip(weights, points, strict=True))
    s2 = sum(w * x * x for w, (x, _) in zip(weights, points, strict=True))
    t0 = sum(w * t for w, (_, t) in zip(weights, points, strict=True))
    t1 = sum(w * x * t for w, (x, t) in zip(weights, points, strict=True))
    determinant = s0 * s2 - s1 * s1
    if determinant <= 1e-12 * s0 * s2:
        return 0.0, t1 / s2
    fixed, slope = (t0 * s2 - t1 * s1) / determinant, (s0 * t1 - s1 * t0) / determinant
    if fixed < 0:
        return 0.0, t1 / s2
    return (t0 / s0, 0.0) if slope < 0 else (fixed, slope)
