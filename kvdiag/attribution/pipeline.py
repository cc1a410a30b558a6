"""From a bundle to a diagnosis: split, expect, book, test, say."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from kvdiag.attribution import steps, verdict
from kvdiag.attribution.assemble import INTERVAL, period, quantile_excess, ranked_causes, row_seconds, stage_shares
from kvdiag.attribution.assessment import assess
from kvdiag.attribution.blocks import moments
from kvdiag.attribution.causes.base import discover
from kvdiag.attribution.causes.schedule_host_contention import CAUSE as HOST_CONTENTION
from kvdiag.attribution.clocks import Offset, find_offsets
from kvdiag.attribution.columns import Mechanism, Pushes, build_columns, mechanisms
from kvdiag.attribution.frame import Frame, build_frame, standing_frame
from kvdiag.attribution.ledger import solve
from kvdiag.attribution.occupancy import (
    Occupancy,
    above_usual,
    find_occupancies,
    held_stages,
    pushed_wait,
    taken,
)
from kvdiag.attribution.split import Split, choose_split, perhaps
from kvdiag.attribution.tail import tail_change
from kvdiag.attribution.variance import split_variance
from kvdiag.attribution.whole_period import REPLICATES, data_summary, whole_period
from kvdiag.derive.stages import StageMatrix, stage_matrix
from kvdiag.derive.thin import LIVE_ROWS, thinned
from kvdiag.model.bundle import Bundle
from kvdiag.model.diagnosis import Diagnosis
from kvdiag.model.missing import Missing

BUSY_HOST = HOST_CONTENTION.id


def diagnose(
    bundle: Bundle, incident_start_s: float | None = None, seed: int = 0, *, incident_end_s: float | None = None
) -> Diagnosis:
    """Return why TTFT varies and what changed it; `incident_start_s` and `_end_s` in seconds on the bundle's clock.

    Without it, the bundle's own announced start counts, else a change point is searched. Deterministic for a seed.
    UsageError where they lie outside the recorded arrivals.
    """
    stages = stage_matrix(bundle.requests)
    split = choose_split(bundle, stages, incident_start_s, incident_end_s)
    random = np.random.default_rng(seed)
    # Prometheus puts its own clock on what it scrapes.
    offsets = {} if bundle.window_s else find_offsets(bundle, stages)
    if split.at_s is None:
        standing = whole_period(standing_frame(bundle, stages, offsets), split, seed)
        return _perhaps_changed(bundle, stages, split, offsets, random, standing)
    frame = build_frame(bundle, stages, split.at_s, split.stop_s, offsets)
    few = verdict.too_few(int((~frame.incident).sum()), int(frame.incident.sum()), windowed=frame.windowed)
    if few is not None:
        return whole_period(frame.throughout(), split, seed, few)
    found = _against_baseline(frame, split, random)
    if split.candidate is None or (found.verdict.status == "cause" and not _is_drift(found.verdict.cause)):
        return found
    # The change was only found, not announced: perhaps both sides of it are bad.
    throughout = whole_period(frame.throughout(), split, seed)
    return throughout if throughout.verdict.status == "cause" and not _outweighs(found, throughout) else found


def _outweighs(change: Diagnosis, standing: Diagnosis) -> bool:
    """Whether a change that load or nothing explains costs more, over all rows, than a host that was always busy.

    Whatever costs processor time raises the pressure that names such a host, more load too.
    """
    if standing.verdict.cause != BUSY_HOST or change.verdict.status == "no_change":
        return False
    if change.baseline is None or change.incident is None:
        return False
    rows = change.baseline.requests + change.incident.requests
    rise_s = (change.incident.mean_s - change.baseline.mean_s) * change.incident.requests / rows
    named = next(one for one in standing.causes if one.id == BUSY_HOST)
    return rise_s > named.excess_mean_s


def _perhaps_changed(
    bundle: Bundle,
    stages: StageMatrix,
    split: Split,
    offsets: Mapping[str, Offset],
    random: np.random.Generator,
    standing: Diagnosis,
) -> Diagnosis:
    """Return what the unclear change point shows, where a fault is named against what came before it.

    Where the whole period shows the same fault, the larger excess is right: the other baseline holds some of the fault.
    """
    unclear = perhaps(split)
    if unclear is None or unclear.at_s is None:
        return standing
    frame = build_frame(bundle, stages, unclear.at_s, unclear.stop_s, offsets)
    if verdict.too_few(int((~frame.incident).sum()), int(frame.incident.sum()), windowed=frame.windowed) is not None:
        return standing
    found = _against_baseline(frame, unclear, random)
    if found.verdict.status != "cause" or _is_drift(found.verdict.cause):
        return standing
    if standing.verdict.status != "cause":
        return found
    same = standing.verdict.cause == found.verdict.cause
    return found if same and _excess_s(found) > _excess_s(standing) else standing


def _excess_s(found: Diagnosis) -> float:
    return next(one.excess_mean_s for one in found.causes if one.id == found.verdict.cause)


def diagnose_live(bundle: Bundle, incident_start_s: float | None = None, seed: int = 0) -> Diagnosis:
    """Return the diagnosis of a live window of any number of requests, from about LIVE_ROWS of them: it must be quick.

    Waits are not recomputed (that needs every request); counters, which count all, are used whole.
    """
    return diagnose(thinned(bundle, LIVE_ROWS, seed), incident_start_s, seed)


def _is_drift(cause: str | None) -> bool:
    return any(one.id == cause and one.workload for one in discover())


def _against_baseline(frame: Frame, split: Split, random: np.random.Generator) -> Diagnosis:
    found = mechanisms(frame, discover())
    frame.relieve()
    occupancies = find_occupancies(frame)
    columns = build_columns(frame, found, *_pushes(frame, found, occupancies))
    total = frame.stages.ttft_s
    blocks = [
        moments(columns.matrix[rows], frame.clock(which), 0.0, frame.period_s(which), total[rows], frame.least_bin_s)
        for which, rows in ((False, ~frame.incident), (True, frame.incident))
    ]
    point = solve(columns, blocks[0].total[None], blocks[1].total[None])
    boot = solve(columns, blocks[0].resample(REPLICATES, random), blocks[1].resample(REPLICATES, random))
    seconds = row_seconds(frame, columns, point)
    periods = (
        period(total[~frame.incident], frame.spans(incident=False)),
        period(total[frame.incident], frame.spans(incident=True)),
    )
    tail = quantile_excess(total[frame.incident], seconds[frame.incident], 0.99)
    p99 = tail_change(frame, blocks, REPLICATES, random)
    assessed = assess(
        columns, point, boot, tail, periods[0].p99_s, frame.rows, tail_low=p99.low_s, windowed=frame.windowed
    )
    decided = verdict.decide(columns, point, assessed, tail, p99)
    decided = replace(decided, collect_next=steps.collect_next(columns, point, decided))
    low, high = np.quantile(boot.stage_share, INTERVAL, axis=0)
    excess = np.quantile(boot.stage_excess, INTERVAL, axis=0)
    stages = stage_shares(
        frame, split_variance(frame.stages.seconds, frame.incident), low, high, (excess[0], excess[1])
    )
    missing = tuple(
        f"{one.cause.id}: {one.dose.missing}" for one in found if one.cause.dose and isinstance(one.dose, Missing)
    )
    return Diagnosis(
        verdict=decided,
        causes=ranked_causes(frame, columns, point, assessed, seconds),
        stages=stages,
        baseline=periods[0],
        incident=periods[1],
        data=data_summary(frame.bundle, frame.stages, split, missing),
        steps=steps.explain(
            frame, columns, split, occupancies, blocks, REPLICATES, point, assessed, stages, periods, decided, p99
        ),
    )


def _pushes(
    frame: Frame, found: tuple[Mechanism, ...], occupancies: tuple[Occupancy, ...]
) -> tuple[Pushes, frozenset[str]]:
    """Return the waits that each mechanism's seconds in the service behind them brought about."""
    pushes: Pushes = {}
    served: frozenset[str] = frozenset()
    for occupancy in occupancies:
        columns = build_columns(frame, found, pushes, served)
        base, incident = (columns.matrix[rows] for rows in (~frame.incident, frame.incident))
        held = held_stages(frame, occupancy.waiting, occupancy.until)
        point = solve(columns, (base.T @ base)[None], (incident.T @ incident)[None], held)
        seconds = row_seconds(frame, columns, point)
        above = {s: above_usual(frame, columns, s) for s in held}
        for index, mechanism in enumerate(found):
            if mechanism.active_dose is not None and point.excess[0, index] > 0:
                touched = frame.incident & (seconds[:, index] > 0)
                booked = {s: float(point.by_stage[0, s, index]) * float(frame.incident.sum()) for s in held}
                removed = sum((taken(above[s], touched, booked[s]) for s in held), np.zeros(frame.rows))
                pushes[occupancy.waiting, index] = pushed_wait(frame, occupancy, removed)
        served |= {occupancy.waiting}
    return pushes, served
