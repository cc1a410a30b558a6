"""On which nodes, pairs of nodes and devices a cause's seconds or counters concentrate."""

import numpy as np

from kvdiag.attribution.frame import Floats, Frame, Role
from kvdiag.derive.counters import CounterBank

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


def pairs_of(frame: Frame, seconds: Floats) -> tuple[str, ...]:
    """Return the pairs whose requests carry the cause although other pairs of both their nodes hardly do."""
    prefill, decode = frame.nodes("prefill"), frame.nodes("decode")
    shape = (len(prefill.names), len(decode.names))
    rows = frame.incident & (prefill.codes >= 0) & (decode.codes >= 0)
    if min(shape) < 2 or not rows.any():
        return ()
    index = prefill.codes[rows].astype(np.int64) * shape[1] + decode.codes[rows]
    count = np.bincount(index, minlength=shape[0] * shape[1]).reshape(shape)
    total = np.bincount(index, weights=seconds[rows], minlength=shape[0] * shape[1]).reshape(shape)
    mean = np.where(count >= LEAST_PAIR_ROWS, total / np.maximum(count, 1), np.nan)
    found = []
    for p, d in zip(*np.nonzero(np.nan_to_num(mean, nan=0.0) > 0), strict=True):
        others = [*np.delete(mean[p], d), *np.delete(mean[:, d], p)]
        known = [one for one in others if np.isfinite(one)]
        # Most of the other pairs, not all: two sick pairs may share a node.
        if len(known) >= LEAST_OTHER_PAIRS and mean[p, d] > PAIR_SPREAD * max(float(np.median(known)), 0.0):
            found.append((float(mean[p, d]), f"{prefill.names[p]} → {decode.names[d]}"))
    found.sort(reverse=True)
    worst = found[0][0] if found else 0.0
    return tuple(name for value, name in found if value >= NEAR_WORST * worst)[:MOST_PAIRS]


LEAST_PAIR_ROWS = 10
LEAST_OTHER_PAIRS = 2
PAIR_SPREAD = 4.0
"""A sick node shows on all of its pairs alike; a sick path on one of them, several times the others of both nodes."""
MOST_PAIRS = 5


def devices_of(frame: Frame, metric: str, node: str) -> tuple[str, ...]:
    """Return the node's devices on which the metric rose by at least half of its largest rise, where not on all."""
    rises = {}
    for one in frame.counted_devices(metric, node):
        bank = CounterBank([one], frame.bundle.metrics)
        means = [
            np.array([float(bank.mean(metric, node, *span)) for span in frame.spans(which)]) for which in (False, True)
        ]
        before, after = (float(np.nanmean(part)) if np.isfinite(part).any() else 0.0 for part in means)
        rises[one.device or ""] = after - before
    worst = max(rises.values(), default=0.0)
    if len(rises) < 2 or worst <= 0:
        return ()
    chosen = tuple(name for name, rise in sorted(rises.items()) if rise >= NEAR_WORST * worst)
    return chosen if len(chosen) < len(rises) else ()
