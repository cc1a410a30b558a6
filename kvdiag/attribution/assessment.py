"""From the ledger and its bootstrap: how each cause scores, with what confidence, and which may be named."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvdiag.attribution import reliability
from kvdiag.attribution.causes.base import KV_STAGES, Load
from kvdiag.attribution.columns import Columns
from kvdiag.attribution.frame import Floats
from kvdiag.attribution.ledger import QUEUE, Ledger
from kvdiag.attribution.more_work import SHIFT
from kvdiag.attribution.occupancy import WAITS
from kvdiag.model.missing import Missing

MATERIAL = 0.02
"""A cause below 2 % of the baseline's mean TTFT is real or not, but never worth a verdict."""
FULL_SAMPLE = 2000
"""With fewer rows the bar rises with the standard error: 2 % x sqrt(2000 / rows)."""
LOWER_BOUND = 0.5
"""The interval's lower end must clear half the bar: bursts are few, and their intervals wide."""
STANDING = 0.05
"""Without a baseline, below 5 % of the expected mean TTFT the expectation itself is in doubt."""
GATE = 0.7
"""Confidence from which a cause is said aloud."""
CRITICAL = 0.10
"""From 10 % of the baseline's mean or p99 TTFT a named cause is critical, below it a warning."""
OVERSHADOWED = 3.0
"""Load and prompt lengths always drift; a fault is the news unless the drift is three times its size, or in any case
where the fault itself is critical: repairing it helps at once, however much the load grew beside it."""


@dataclass(frozen=True, slots=True, eq=False)
class Assessment:
    """Per mechanism, the last one "unexplained": rank score, intervals, confidence, and whether it may be named.

    `raw` is the confidence before calibration.
    `bar` is the share of the baseline's mean from which a cause may be named, `quiet` in how many replicates none is.
    """

    score: Floats
    low: Floats
    high: Floats
    share_low: Floats
    share_high: Floats
    raw: Floats
    confidence: Floats
    passes: tuple[bool, ...]
    order: tuple[int, ...]
    bar: float
    total_low: float
    total_high: float
    quiet: float


def material_bar(rows: int, *, standing: bool = False) -> float:
    """Return the share of baseline mean TTFT from which a cause may be named, given the number of rows."""
    bar = MATERIAL * max(1.0, float(np.sqrt(FULL_SAMPLE / max(rows, 1))))
    return max(bar, STANDING) if standing else bar


def assess(
    columns: Columns,
    point: Ledger,
    boot: Ledger,
    tail: Floats,
    base_p99: float,
    rows: int,
    *,
    tail_low: float = 0.0,
    standing: bool = False,
    windowed: bool = False,
) -> Assessment:
    """Score and test every mechanism; `tail` holds each one's p99 excess in seconds.

    A fault that hits few requests may be named for what it adds to p99 alone, where the lower end `tail_low` of the
    change of p99 is above zero: from a tenth of the baseline's p99 on.

    `standing`: against expectation instead of a baseline. Then load and prompts are never named (who knows what is
    usual of them?), and come after what the machines do that costs enough to be named.

    Raw confidence = P(material and first of the named causes over the bootstrap) x strength of the evidence x
    sqrt(share of the service's excess that named causes explain); `reliability` says what that is worth.
    """
    base_mean = float(point.base_mean[0])
    bar = material_bar(rows, standing=standing)
    score = 0.5 * point.excess[0] / base_mean + 0.5 * tail / max(base_p99, 1e-12)
    low, high = np.quantile(boot.excess, [0.05, 0.95], axis=0)
    share_low, share_high = np.quantile(boot.share, [0.05, 0.95], axis=0)
    total_low, total_high = np.quantile(boot.total_excess, [0.05, 0.95])
    relative = boot.excess / np.maximum(boot.base_mean, 1e-12)[:, None]
    secondary = _secondary(columns, point.excess[0, :-1], low[:-1], bar * base_mean)
    leads = _leads(columns, np.where(secondary[None, :], 0.0, relative[:, :-1]))
    rare = np.array(
        [
            not one.cause.workload and not standing and tail_low > 0 and float(tail[i]) > CRITICAL * base_p99
            for i, one in enumerate(columns.mechanisms)
        ]
    )
    probability = ((relative[:, :-1] > np.where(rare, 0.0, MATERIAL)) & leads).mean(axis=0)
    strength = np.array([one.strength for one in columns.mechanisms])
    kind: reliability.Kind | None = "standing" if standing else "windows" if windowed else None
    raw = np.minimum(probability * strength * np.sqrt(_explained(columns, point)), 1.0)
    confidence = np.array(
        [
            reliability.calibrated(float(value), kind or ("drift" if one.cause.workload else "fault"))
            for one, value in zip(columns.mechanisms, raw, strict=True)
        ]
    )
    unexplained = max(float(point.excess[0, -1]), 0.0)
    passes = tuple(
        bool(
            (
                (point.excess[0, i] > bar * base_mean and low[i] > LOWER_BOUND * bar * base_mean)
                or (rare[i] and low[i] > 0)
            )
            and confidence[i] >= GATE
            # What the machines did has its own evidence; drift of load or prompts is everywhere and proves little.
            and (not one.cause.workload or (point.excess[0, i] > unexplained and _beyond_chance(one.load)))
            # Against expectation, seconds that nothing explains say that the expectation does not hold here.
            and not (standing and (one.cause.workload or unexplained > point.excess[0, i]))
            and not secondary[i]
        )
        for i, one in enumerate(columns.mechanisms)
    )
    large = tuple((point.excess[0, :-1] > bar * base_mean).tolist())
    critical = np.maximum(point.excess[0] / base_mean, tail / max(base_p99, 1e-12)) >= CRITICAL
    order = ranking(columns, score[:-1], point.excess[0, :-1], large if standing else passes, critical | standing)
    order = _after(order, secondary, passes)
    counted = relative[:, [i for i, one in enumerate(columns.mechanisms) if not (standing and one.cause.workload)]]
    return Assessment(
        score=score,
        low=low,
        high=high,
        share_low=share_low,
        share_high=share_high,
        raw=raw,
        confidence=confidence,
        passes=passes,
        order=order,
        bar=bar,
        total_low=float(total_low),
        total_high=float(total_high),
        quiet=float((counted.max(axis=1, initial=0.0) <= bar).mean()),
    )


def _secondary(columns: Columns, excess: Floats, low: Floats, least: float) -> NDArray[np.bool_]:
    """Mark symptoms whose reason is present too: a cause of slow transfers that is large enough to be named.

    A decode node whose transfers take longer holds its KV space longer, and lets the next request wait for it.
    """
    reasons = [
        not one.cause.symptom
        and not one.cause.workload
        and bool(set(one.cause.stages) & set(KV_STAGES))
        and float(excess[i]) > least
        and float(low[i]) > LOWER_BOUND * least
        for i, one in enumerate(columns.mechanisms)
    ]
    return np.array([one.cause.symptom and any(reasons) for one in columns.mechanisms])


def _after(order: tuple[int, ...], secondary: NDArray[np.bool_], passes: tuple[bool, ...]) -> tuple[int, ...]:
    """Return the order with each symptom behind the last cause that may be named (none: as it was)."""
    if not any(passes):
        return order
    named = [i for i in order if passes[i]]
    symptoms = [i for i in order if secondary[i] and order.index(i) < order.index(named[-1])]
    rest = [i for i in order if i not in symptoms]
    after = rest.index(named[-1]) + 1
    return (*rest[:after], *symptoms, *rest[after:])


def _beyond_chance(load: Load | Missing) -> bool:
    """Whether a load factor grew by more than SHIFT standard errors (none known: the bootstrap alone decides)."""
    return not isinstance(load, Load) or float(np.log(max(load.ratio, 1e-9))) > SHIFT * load.error


def _leads(columns: Columns, relative: Floats) -> NDArray[np.bool_]:
    """Return per replicate which cause has the largest mean excess; faults of the machines compete among themselves.

    By mean only: a quantile cannot be rebuilt from moments.
    """
    workload = np.array([one.cause.workload for one in columns.mechanisms])
    faults = np.where(workload[None, :], -np.inf, relative)
    result: NDArray[np.bool_] = np.where(
        workload[None, :],
        relative >= relative.max(axis=1, keepdims=True),
        faults >= faults.max(axis=1, keepdims=True),
    )
    return result


def ranking(
    columns: Columns, score: Floats, excess: Floats, passes: tuple[bool, ...], critical: NDArray[np.bool_]
) -> tuple[int, ...]:
    """Rank by score; a fault that `passes` goes before workload drift up to OVERSHADOWED times its size, or any.

    What made the mean shorter comes last, whatever it did to the tail.
    """
    leads = [
        ok and not one.cause.workload and (bool(critical[i]) or score[i] * OVERSHADOWED >= score.max())
        for i, (one, ok) in enumerate(zip(columns.mechanisms, passes, strict=True))
    ]
    return tuple(sorted(range(len(score)), key=lambda i: (not leads[i], bool(excess[i] < 0), -score[i])))


def _explained(columns: Columns, point: Ledger) -> Floats:
    """Return by cause which share of the excess causes explain (positive parts), leaving aside waits, the symptoms.

    What was asked for in excess shows in the queue itself: that part counts for the cause that it is booked to.
    """
    outside = [s for s, name in enumerate(columns.stages) if name not in WAITS]
    by_cause = np.maximum(point.by_stage[0, outside].sum(axis=0), 0.0)
    queue = [s for s, name in enumerate(columns.stages) if name == QUEUE]
    own = np.maximum(point.by_stage[0, queue, :-1].sum(axis=0), 0.0)
    own = np.where([one.cause.workload for one in columns.mechanisms], own, 0.0)
    whole = float(by_cause.sum()) + own
    return np.where(whole > 0, (float(by_cause[:-1].sum()) + own) / np.where(whole > 0, whole, 1.0), 1.0)
