"""On which nodes a cause's seconds concentrate."""

import numpy as np

from kvdiag.attribution.frame import Floats, Frame, Role

SPREAD = 1.6
"""The worst node must have this many times the mean of its peers for the cause to sit on some of them only."""
NEAR_WORST = 0.5


def nodes_of(frame: Frame, seconds: Floats, side: Role | None) -> tuple[str, ...]:
    """Return the nodes whose requests carry the cause: those within half of the worst one.

    Without a given side, the side whose nodes differ most; all nodes of both sides where none stands out.
    """
    sides: tuple[Role, ...] = ("prefill", "decode") if side is None else (side,)
    found: dict[Role, tuple[float, tuple[str, ...]]] = {}
    for role in sides:
        labels = frame.nodes(role)
        rows = frame.incident & (labels.codes >= 0)
        if not rows.any():
            continue
        size = len(labels.names)
        count = np.bincount(labels.codes[rows], minlength=size)
        mean = np.bincount(labels.codes[rows], weights=seconds[rows], minlength=size) / np.maximum(count, 1)
        worst = float(mean.max())
        if worst <= 0:
            continue
        chosen = tuple(sorted(name for name, one in zip(labels.names, mean, strict=True) if one >= NEAR_WORST * worst))
        found[role] = (worst / max(float(seconds[rows].mean()), 1e-12), chosen)
    if not found:
        return ()
    role = max(found, key=lambda one: found[one][0])
    if side is None and found[role][0] < SPREAD:
        return tuple(sorted({name for _, names in found.values() for name in names}))
    return found[role][1]
