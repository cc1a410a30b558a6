"""The parts of a diagnosis document, from numbers to named fields."""

import numpy as np

from kvdiag.attribution.assessment import Assessment
from kvdiag.attribution.columns import Columns, Mechanism
from kvdiag.attribution.frame import Floats, Frame
from kvdiag.attribution.ledger import Ledger
from kvdiag.attribution.rates import Spans
from kvdiag.attribution.variance import VarianceSplit
from kvdiag.attribution.where import devices_of, nodes_of, pairs_of
from kvdiag.model.diagnosis import AttributedCause, Period, StageShare
from kvdiag.model.finding import Evidence

UNEXPLAINED = "unexplained"
UNEXPLAINED_ACTION = (
    "collect what could tell causes apart here (see what was missing), or look at the stage with the largest excess"
)
INTERVAL = (0.05, 0.95)
CHUNK_ROWS = 100_000
"""Taken at a time, so that a million rows need no more memory than their columns."""


def period(total: Floats, spans: Spans) -> Period:
    """Return count, mean, quantiles and variance of TTFT in a period, which may be of several stretches of time."""
    return Period(
        start_s=spans[0][0],
        end_s=spans[-1][1],
        seconds=sum(stop - begin for begin, stop in spans),
        requests=len(total),
        mean_s=float(total.mean()),
        p50_s=float(np.quantile(total, 0.5)),
        p99_s=float(np.quantile(total, 0.99)),
        variance_s2=float(total.var()),
    )


def stage_shares(
    frame: Frame, exact: VarianceSplit, share_low: Floats, share_high: Floats, excess: tuple[Floats, Floats] | None
) -> tuple[StageShare, ...]:
    """Return the exact split with its intervals; `excess` holds low and high seconds, None without a baseline."""
    safe = exact.variance if exact.variance > 0 else np.inf
    seconds = frame.stages.seconds
    after = seconds[frame.incident].mean(axis=0)
    before = None if excess is None else seconds[~frame.incident].mean(axis=0)
    return tuple(
        StageShare(
            stage=name,
            share_of_variance=float(exact.share[s]),
            share_low=float(share_low[s]),
            share_high=float(share_high[s]),
            share_within=float(exact.within[s] / safe),
            share_between=float(exact.between[s] / safe),
            mean_baseline_s=None if before is None else float(before[s]),
            mean_incident_s=float(after[s]),
            excess_mean_s=None if before is None else float(after[s] - before[s]),
            excess_low_s=None if excess is None else float(excess[0][s]),
            excess_high_s=None if excess is None else float(excess[1][s]),
            note=_negative(float(exact.within[s] / safe), float(exact.between[s] / safe)),
        )
        for s, name in enumerate(frame.stages.names)
    )


def _negative(within: float, between: float) -> str:
    """Explain a negative share in words, or return nothing."""
    if within + between >= -0.0005:
        return ""
    if within <= between:
        return "negative: within a period, requests that take long in all tend to be short here"
    return "negative: the stage became shorter while TTFT became longer, or the reverse"


def quantile_excess(total: Floats, seconds: Floats, q: float) -> Floats:
    """Return by cause how much lower the quantile of TTFT would be without the cause's seconds."""
    lower: Floats = np.quantile(total, q) - np.quantile(total[:, None] - seconds, q, axis=0)
    return lower


def row_seconds(frame: Frame, columns: Columns, point: Ledger) -> Floats:
    """Return seconds of every request by mechanism, "unexplained" last."""
    seconds = np.empty((frame.rows, point.base_weights.shape[1]))
    for start in range(0, frame.rows, CHUNK_ROWS):
        rows = slice(start, start + CHUNK_ROWS)
        seconds[rows] = np.where(
            frame.incident[rows, None],
            columns.matrix[rows] @ point.incident_weights[0].T,
            columns.matrix[rows] @ point.base_weights[0].T,
        )
    return seconds


def ranked_causes(
    frame: Frame, columns: Columns, point: Ledger, found: Assessment, seconds: Floats
) -> tuple[AttributedCause, ...]:
    """Return every cause that has seconds or a share, in rank order, and "unexplained" last."""
    total = frame.stages.ttft_s[frame.incident]
    middle, tail = (quantile_excess(total, seconds[frame.incident], q) for q in (0.5, 0.99))
    causes: list[AttributedCause] = []
    for index in (*found.order, len(columns.mechanisms)):
        mechanism = columns.mechanisms[index] if index < len(columns.mechanisms) else None
        excess = float(point.excess[0, index])
        if mechanism is not None and excess == 0 and point.share[0, index] == 0:
            continue
        side = mechanism.cause.side if mechanism else None
        evidence = _evidence(frame, columns, point, mechanism, index)
        machine = mechanism is not None and not mechanism.cause.workload and excess > 0
        causes.append(
            AttributedCause(
                id=UNEXPLAINED if mechanism is None else mechanism.cause.id,
                share_of_variance=float(point.share[0, index]),
                share_low=float(found.share_low[index]),
                share_high=float(found.share_high[index]),
                excess_mean_s=excess,
                excess_mean_low_s=float(found.low[index]),
                excess_mean_high_s=float(found.high[index]),
                excess_p50_s=float(middle[index]),
                excess_p99_s=float(tail[index]),
                confidence=0.0 if mechanism is None else float(found.confidence[index]),
                nodes=nodes_of(frame, seconds[:, index], side) if excess > 0 else (),
                evidence=evidence,
                action=UNEXPLAINED_ACTION if mechanism is None else mechanism.cause.action,
                pairs=pairs_of(frame, seconds[:, index]) if machine else (),
                devices=_devices(frame, evidence) if machine else (),
            )
        )
    return tuple(causes)


def _devices(frame: Frame, evidence: tuple[Evidence, ...]) -> tuple[str, ...]:
    """Return "node device" where a counter of the evidence rose on some of a node's devices only."""
    found: dict[str, None] = {}
    for line in evidence:
        metric, separator, node = line.name.partition(" @ ")
        if separator:
            found |= dict.fromkeys(f"{node} {device}" for device in devices_of(frame, metric, node))
    return tuple(found)


def _evidence(
    frame: Frame, columns: Columns, point: Ledger, mechanism: Mechanism | None, index: int
) -> tuple[Evidence, ...]:
    """Return where the cause's seconds are, then what its mechanism showed."""
    by_stage = point.by_stage[0, :, index]
    stages = sorted(range(len(columns.stages)), key=lambda s: -abs(by_stage[s]))[:3]
    parts = [f"{columns.stages[s]} {by_stage[s] * 1e3:+.3g} ms" for s in stages if by_stage[s] != 0]
    lines: tuple[Evidence, ...] = ()
    if parts:
        lines = (
            Evidence(name="excess by stage", value=", ".join(parts), source="requests, stages beyond what is usual"),
        )
    if mechanism is None:
        return lines
    if mechanism.active_dose is not None:
        lines += mechanism.active_dose.evidence
    return lines + (mechanism.cause.evidence(frame) if mechanism.cause.evidence else ())
