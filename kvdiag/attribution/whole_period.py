"""A diagnosis without a baseline: the exact split of the whole period, and what costs more than it should all along."""

from dataclasses import replace

import numpy as np

from kvdiag.attribution import steps, verdict
from kvdiag.attribution.assemble import (
    INTERVAL,
    period,
    quantile_excess,
    ranked_causes,
    row_seconds,
    stage_shares,
)
from kvdiag.attribution.assessment import Assessment, assess
from kvdiag.attribution.blocks import moments
from kvdiag.attribution.causes.base import discover
from kvdiag.attribution.frame import Floats, Frame
from kvdiag.attribution.ledger import Ledger
from kvdiag.attribution.split import Split
from kvdiag.attribution.standing import WIDER, Standing, against_expectation
from kvdiag.attribution.variance import split_variance
from kvdiag.derive.stages import StageMatrix
from kvdiag.model.bundle import Bundle
from kvdiag.model.diagnosis import DataSummary, Diagnosis, StageShare, Verdict

REPLICATES = 200
LEAST_RANKED = 40


def whole_period(frame: Frame, split: Split, seed: int, decided: Verdict | None = None) -> Diagnosis:
    """Return the diagnosis of a standing frame; with too few requests (or `decided`) nothing is named.

    Causes are ranked all the same from LEAST_RANKED requests on; below, only stages are split.
    """
    few = (
        decided or verdict.too_few(frame.rows, windowed=frame.windowed) or verdict.no_time(frame.end_s - frame.start_s)
    )
    total = frame.stages.ttft_s
    shared = {
        "baseline": None,
        "incident": period(total, ((frame.start_s, frame.end_s),)),
        "data": data_summary(frame.bundle, frame.stages, split, ("a baseline to compare with",)),
    }
    if few is not None and (frame.rows < LEAST_RANKED or frame.end_s <= frame.start_s):
        stages = _stages(frame, seed, None)
        told = steps.whole_period(split, stages, float(total.var()), few)
        return Diagnosis(verdict=few, causes=(), stages=stages, steps=told, **shared)  # type: ignore[arg-type]
    found = against_expectation(frame, discover(), REPLICATES, seed)
    seconds = row_seconds(frame, found.columns, found.point)
    seconds[:, -1] = total - found.expected.sum(axis=1) - seconds[:, :-1].sum(axis=1)
    tail = quantile_excess(total, seconds, 0.99)
    expected_p99 = float(np.quantile(found.expected.sum(axis=1), 0.99))
    assessed = assess(found.columns, found.point, found.boot, tail, expected_p99, frame.rows, standing=True)
    point, assessed = _shares(frame, seconds, found.point, assessed, seed)
    said = verdict.decide_standing(found.columns, point, assessed, tail, expected_p99, split)
    said = few or replace(said, collect_next=steps.collect_next(found.columns, point, said))
    stages = _stages(frame, seed, found)
    return Diagnosis(
        verdict=said,
        causes=ranked_causes(frame, found.columns, point, assessed, seconds),
        stages=stages,
        steps=steps.standing(frame, found, split, REPLICATES, point, assessed, stages, said),
        **shared,  # type: ignore[arg-type]
    )


def _shares(frame: Frame, seconds: Floats, point: Ledger, assessed: Assessment, seed: int) -> tuple[Ledger, Assessment]:
    """Replace shares by Cov(seconds of the cause, TTFT) / Var(TTFT) over the period, and widen the excess intervals."""
    total = frame.stages.ttft_s
    columns = np.column_stack([np.ones(frame.rows), seconds, total])
    observed = moments(columns, frame.arrival_s, frame.start_s, frame.end_s, total, frame.least_bin_s)
    grams = np.concatenate([observed.total[None], observed.resample(REPLICATES, np.random.default_rng(seed))])
    rows = np.maximum(grams[:, 0, 0], 1.0)
    mean = grams[:, 0] / rows[:, None]
    covariance = grams[:, 1:, -1] / rows[:, None] - mean[:, 1:] * mean[:, -1:]
    share = covariance[:, :-1] / np.where(covariance[:, -1:] > 0, covariance[:, -1:], np.inf)
    low, high = np.quantile(share[1:], INTERVAL, axis=0)
    return replace(point, share=share[:1]), replace(
        assessed,
        share_low=low,
        share_high=high,
        low=np.where(assessed.low > 0, assessed.low * WIDER[0], assessed.low * WIDER[1]),
        high=np.where(assessed.high > 0, assessed.high * WIDER[1], assessed.high * WIDER[0]),
    )


def _stages(frame: Frame, seed: int, found: Standing | None) -> tuple[StageShare, ...]:
    seconds = frame.stages.seconds
    columns = np.column_stack([np.ones(frame.rows), seconds])
    total = frame.stages.ttft_s
    watched = moments(columns, frame.arrival_s, frame.start_s, frame.end_s, total, frame.least_bin_s)
    drawn = watched.resample(REPLICATES, np.random.default_rng(seed))
    rows = np.maximum(drawn[:, :1, 0], 1.0)
    mean = drawn[:, 0, 1:] / rows
    covariance = drawn[:, 1:, 1:].sum(axis=2) / rows - mean * mean.sum(axis=1, keepdims=True)
    variance = covariance.sum(axis=1, keepdims=True)
    low, high = np.quantile(covariance / np.where(variance > 0, variance, np.inf), INTERVAL, axis=0)
    shares = stage_shares(frame, split_variance(seconds, frame.incident), low, high, None)
    if found is None:
        return shares
    usual = found.expected.mean(axis=0)
    return tuple(replace(one, mean_expected_s=float(usual[s])) for s, one in enumerate(shares))


def data_summary(bundle: Bundle, stages: StageMatrix, split: Split, missing: tuple[str, ...]) -> DataSummary:
    """Return what was examined and what was missing."""
    gaps = tuple(f"requests: {name} is null in {count} row(s)" for name, count in stages.gaps.items())
    return DataSummary(
        requests=len(bundle.requests),
        sampled=bundle.sampling,
        granularity=stages.granularity,
        split=split.how,
        missing=missing,
        notes=(*bundle.notes, *gaps),
    )
