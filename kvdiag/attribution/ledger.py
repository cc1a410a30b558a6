"""The cause ledger: every stage's excess seconds over the baseline, booked to causes or to "unexplained".

Per stage: (1) what the baseline's own slopes on tokens and bytes expect, (2) the rest regressed, non-negatively, on
the doses of the causes that can act there and whose mechanism changed, (3) scaled to the excess that was observed.
Waits: first what a longer service behind them brought about, then, for the queue, what the offered load did.
"""

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from kvdiag.attribution.columns import Columns
from kvdiag.attribution.frame import Floats
from kvdiag.attribution.nnls import bounded_least_squares
from kvdiag.attribution.queue_share import drift_parts, load_parts

UNKNOWN_PENALTY = 0.5
"""Ridge, as a share of their own weight, on the steps that no cause explains: a dose that is noisier than about 0.7 of
its mean within the incident loses to them, so a decoy on one node does not collect what happened on all."""
QUEUE = "queue_s"


@dataclass(frozen=True, slots=True, eq=False)
class Ledger:
    """For k Gram matrices at once: seconds per request, and shares of Var(TTFT).

    `excess[k, c]` and `share[k, c]` by mechanism, the last column "unexplained"; `by_stage[k, s, c]` seconds;
    `base_weights`/`incident_weights[k, c]` turn a row of the matrix into the cause's seconds.
    """

    excess: Floats
    share: Floats
    by_stage: Floats
    stage_excess: Floats
    stage_share: Floats
    total_excess: Floats
    base_mean: Floats
    base_weights: Floats
    incident_weights: Floats


def solve(
    columns: Columns,
    base: Floats,
    incident: Floats,
    stages: Collection[int] | None = None,
    penalty: float = UNKNOWN_PENALTY,
) -> Ledger:
    """Return the ledgers of k pairs of Gram matrices of the columns, shapes (k, m, m); of some stages only if given.

    `penalty` is the ridge on the steps that no cause explains.
    """
    count, causes = len(base), len(columns.mechanisms)
    width = columns.matrix.shape[1]
    # A replicate may have drawn only bins without requests.
    rows_base, rows_incident = np.maximum(base[:, 0, 0], 1.0), np.maximum(incident[:, 0, 0], 1.0)
    mean_base, mean_incident = base[:, 0] / rows_base[:, None], incident[:, 0] / rows_incident[:, None]
    shift = mean_incident - mean_base
    weights = np.zeros((2, count, causes + 1, width))
    by_stage = np.zeros((count, len(columns.stages), causes + 1))
    pooled = base + incident
    centred = _centred(pooled, mean_base)
    within_base = _centred(base, mean_base)
    for s, name in enumerate(columns.stages):
        if stages is not None and s not in stages:
            continue
        raw, cut = columns.raw.start + s, columns.cut.start + s
        if name == QUEUE or name in columns.served:
            booked = _wait(columns, name, mean_base[:, raw], mean_incident, weights, raw)
        else:
            booked = _stage(columns, s, within_base, centred, shift, mean_base, weights, raw, cut, penalty)
        by_stage[:, s, :causes] = booked
        by_stage[:, s, causes] = shift[:, raw] - booked.sum(axis=1)
    total = columns.total
    weights[:, :, causes] = total - weights[:, :, :causes].sum(axis=2)
    weights[:, :, causes, 0] -= mean_base @ total
    rows = rows_base + rows_incident
    mean_total = pooled[:, 0] @ total / rows
    variance = np.einsum("m,kmn,n->k", total, pooled, total) / rows - mean_total**2
    mean_cause = (
        np.einsum("kcm,km->kc", weights[0], base[:, 0]) + np.einsum("kcm,km->kc", weights[1], incident[:, 0])
    ) / rows[:, None]
    product = (
        np.einsum("kcm,km->kc", weights[0], base @ total) + np.einsum("kcm,km->kc", weights[1], incident @ total)
    ) / rows[:, None]
    safe = np.where(variance > 0, variance, np.inf)
    stage_product = (pooled @ total)[:, columns.raw] / rows[:, None]
    stage_mean = pooled[:, 0, columns.raw] / rows[:, None]
    return Ledger(
        excess=by_stage.sum(axis=1),
        share=(product - mean_cause * mean_total[:, None]) / safe[:, None],
        by_stage=by_stage,
        stage_excess=shift[:, columns.raw],
        stage_share=(stage_product - stage_mean * mean_total[:, None]) / safe[:, None],
        total_excess=shift @ total,
        base_mean=mean_base @ total,
        base_weights=weights[0],
        incident_weights=weights[1],
    )


def _centred(gram: Floats, mean: Floats) -> Floats:
    """Return the Gram matrix of the columns minus `mean` (constant column: zeros)."""
    sums, rows = gram[:, 0], gram[:, 0, 0]
    cross = sums[:, :, None] * mean[:, None, :]
    centred: Floats = (
        gram - cross - np.swapaxes(cross, 1, 2) + rows[:, None, None] * mean[:, :, None] * mean[:, None, :]
    )
    return centred


def _stage(
    columns: Columns,
    s: int,
    within_base: Floats,
    centred: Floats,
    shift: Floats,
    mean_base: Floats,
    weights: Floats,
    raw: int,
    cut: int,
    penalty: float,
) -> Floats:
    """Book one stage: returns seconds by mechanism and adds its linear form to `weights`."""
    count = len(shift)
    booked = np.zeros((count, len(columns.mechanisms)))
    drivers = [columns.drivers.start + j for j in columns.stage_drivers[s]]
    drift = drift_parts(columns)
    slopes = bounded_least_squares(
        within_base[:, drivers][:, :, drivers], within_base[:, drivers, cut], np.full((count, len(drivers)), np.inf)
    )
    for position, j in enumerate(columns.stage_drivers[s]):
        column, index = drivers[position], columns.driver_of[j]
        others = columns.driver_shared.get(j, {})
        shares = {index: 1.0 - sum(others.values()), **others}
        if j in columns.driver_by_load and drift.any():
            shares = {one: float(drift[one]) for one in np.flatnonzero(drift).tolist()}
        for one, share in shares.items():
            part = share * slopes[:, position]
            booked[:, one] += part * shift[:, column]
            for period in (0, 1):
                weights[period, :, one, column] += part
                weights[period, :, one, 0] -= part * mean_base[:, column]
    excess = shift[:, raw] - (slopes * shift[:, drivers]).sum(axis=1)
    explained = np.zeros(count)
    target = centred[:, :, cut] - np.einsum("kmd,kd->km", centred[:, :, drivers], slopes)
    for turn in sorted(set(columns.dose_turn)):
        chosen = [j for j in columns.stage_doses[s] if columns.dose_turn[j] == turn]
        doses = [columns.doses.start + j for j in chosen]
        if not doses:
            continue
        theta = _dose_slopes(columns, chosen, doses, centred, target, penalty)
        target = target - np.einsum("kmd,kd->km", centred[:, :, doses], theta)
        seconds = (theta * shift[:, doses]).sum(axis=1)
        # More than was observed cannot have been caused: book at most what is left of the observed excess.
        left = np.maximum(excess - explained, 0.0)
        scale = np.where(seconds > 0, np.minimum(1.0, left / np.where(seconds > 0, seconds, 1.0)), 0.0)
        for position, j in enumerate(chosen):
            column, index = doses[position], columns.dose_of[j]
            part = scale * theta[:, position]
            booked[:, index] += part * shift[:, column]
            for period in (0, 1):
                weights[period, :, index, column] += part
                weights[period, :, index, 0] -= part * mean_base[:, column]
        explained = explained + scale * seconds
    owner = columns.owner[s]
    if owner >= 0:
        rest = np.maximum(excess - explained, 0.0)
        booked[:, owner] += rest
        mean = np.maximum(mean_base[:, raw] + shift[:, raw], 1e-12)
        weights[1, :, owner, raw] += rest / mean
    return booked


def _dose_slopes(
    columns: Columns, chosen: list[int], doses: list[int], centred: Floats, target: Floats, penalty: float
) -> Floats:
    """Return seconds per unit of each dose, fitted beside two penalised steps that stand for what no dose explains."""
    fitted = [*doses, *range(columns.unknown.start, columns.unknown.stop)]
    gram = centred[:, fitted][:, :, fitted].copy()
    for position in range(len(doses), len(fitted)):
        gram[:, position, position] *= 1 + penalty
    upper = np.full((len(gram), len(fitted)), np.inf)
    upper[:, : len(doses)] = columns.ceilings[chosen]
    slopes: Floats = bounded_least_squares(gram, target[:, fitted], upper)[:, : len(doses)]
    return slopes


def _wait(columns: Columns, name: str, before: Floats, mean_incident: Floats, weights: Floats, raw: int) -> Floats:
    """Book a waiting stage: to what lengthened the service behind it, then the queue to load factors that grew."""
    booked = np.zeros((len(before), len(columns.mechanisms)))
    rising = np.maximum(mean_incident[:, raw] - before, 0.0)
    pushes = [(columns.pushes.start + j, index) for j, (stage, index) in enumerate(columns.push_of) if stage == name]
    whole = sum((mean_incident[:, column] for column, _ in pushes), np.zeros(len(before)))
    scale = np.where(whole > 0, np.minimum(1.0, rising / np.where(whole > 0, whole, 1.0)), 0.0)
    for column, index in pushes:
        booked[:, index] += scale * mean_incident[:, column]
        weights[1, :, index, column] += scale
    rest = rising - scale * whole
    owner = columns.owner[columns.stages.index(name)]
    parts = np.zeros_like(booked)
    if name == QUEUE:
        parts = load_parts(columns, before, mean_incident[:, raw])
    if owner >= 0 and not parts.any():
        parts[:, owner] = 1.0
    for index in np.flatnonzero(parts.any(axis=0)).tolist():
        seconds = parts[:, index] * rest
        booked[:, index] += seconds
        weights[1, :, index, raw] += seconds / np.maximum(mean_incident[:, raw], 1e-12)
    return booked
