"""To which factors of the offered load the queue's excess seconds belong.

Waits grow as rho / (1 - rho) with the utilisation rho (M/G/1). The two recorded means and the ratio of the offered
work give rho; without the faults' factors (misses, slow compute) the queue would have been that much shorter: that
difference is theirs, as if they were repaired. Drift of the workload has the rest, by logarithms.
"""

import numpy as np
from numpy.typing import NDArray

from kvdiag.attribution.causes.base import Load
from kvdiag.attribution.columns import Columns

Floats = NDArray[np.float64]

LEAST_LOAD_GROWTH = 2.0
"""Load growth counts from two standard errors on, and from LEAST_LOAD_LOG."""
LEAST_LOAD_LOG = 0.03


def load_logs(columns: Columns) -> Floats:
    """Return by mechanism the logarithm of its load factor, zero where it is within its error."""
    logs = np.zeros(len(columns.mechanisms))
    for index, mechanism in enumerate(columns.mechanisms):
        load = mechanism.load
        if isinstance(load, Load):
            value = float(np.log(max(load.ratio, 1e-9)))
            if abs(value) > max(LEAST_LOAD_GROWTH * load.error, LEAST_LOAD_LOG):
                logs[index] = value
    return logs


def load_parts(columns: Columns, before: Floats, after: Floats) -> Floats:
    """Return by mechanism the share of the queue's growth, given its mean seconds in both periods (one per replicate).

    All zeros where the offered work did not grow; the shares add up to less than 1 where prefill computes slower for
    no known reason: that part stays unexplained.
    """
    logs = load_logs(columns)
    parts = np.zeros((len(before), len(logs)))
    if logs.sum() <= 0:
        return parts
    workload = np.array([one.cause.workload for one in columns.mechanisms])
    grown = np.maximum(logs, 0.0)
    drift, broken = np.where(workload, grown, 0.0), np.where(workload, 0.0, grown)
    of_faults = broken.sum() + columns.slowdown
    if of_faults <= 0:
        share = np.zeros(len(before))
    elif drift.sum() <= 0:
        share = np.ones(len(before))
    else:
        share = _without(before, after, float(logs.sum() + columns.slowdown), float(of_faults))
    if of_faults > 0:
        parts += share[:, None] * broken[None, :] / of_faults
    if drift.sum() > 0:
        parts += (1 - share)[:, None] * drift[None, :] / drift.sum()
    return parts


def drift_parts(columns: Columns) -> Floats:
    """Return by mechanism the share of what follows from the offered work, by logarithms; zeros where it fell."""
    grown = np.maximum(load_logs(columns), 0.0)
    return grown / grown.sum() if grown.sum() > 0 else grown


def _without(before: Floats, after: Floats, whole: float, faults: float) -> Floats:
    """Return which share of after - before would go, were the work less by exp(-faults); `whole` is its logarithm."""
    before, after = np.maximum(before, 1e-9), np.maximum(after, 1e-9)
    growth, ratio = after / before, float(np.exp(whole))
    with np.errstate(divide="ignore", invalid="ignore"):
        busy = (growth - ratio) / (ratio * (growth - 1))
        relieved = busy * np.exp(whole - faults)
        queue = before * relieved / (1 - relieved) * (1 - busy) / busy
        power = after * np.exp(-faults * np.log(growth) / whole) if whole > 0 else before
        valid = (growth > ratio) & (ratio > 1) & (busy > 0) & (relieved < 1)
        left = np.where(valid, queue, power)
        share = np.where(after > before, (after - left) / (after - before), 0.0)
    clipped: Floats = np.clip(np.nan_to_num(share, nan=0.0), 0.0, 1.0)
    return clipped
