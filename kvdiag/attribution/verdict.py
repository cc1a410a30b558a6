"""From the ledger and its bootstrap to one statement, its confidence, or an abstention."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvdiag.attribution import reliability
from kvdiag.attribution.causes.base import KV_STAGES, Load
from kvdiag.attribution.changepoint import bridge_tail
from kvdiag.attribution.columns import Columns
from kvdiag.attribution.frame import Floats
from kvdiag.attribution.ledger import QUEUE, Ledger
from kvdiag.attribution.more_work import SHIFT, more_work
from kvdiag.attribution.occupancy import WAITS
from kvdiag.attribution.split import Split
from kvdiag.attribution.tail import TailChange
from kvdiag.model.diagnosis import Verdict
from kvdiag.model.missing import Missing

LEAST_ROWS = 120
"""Below, even the right cause is sized wrongly by half; measured on thinned simulated incidents."""
LEAST_ROWS_PER_PERIOD = 30
LEAST_WINDOWS = 40
LEAST_WINDOWS_PER_PERIOD = 10
"""Each of them is the mean of many requests."""
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
_ROUNDING_S = 1e-6
"""What sums of many seconds may be off by, and nothing to a TTFT."""
CRITICAL = 0.10
"""From 10 % of the baseline's mean or p99 TTFT a named cause is critical, below it a warning."""
OVERSHADOWED = 3.0
"""Load and prompt lengths always drift; a fault is the news unless the drift is three times its size, or in any case
where the fault itself is critical: repairing it helps at once, however much the load grew beside it."""
STANDING_UNEXPLAINED = 0.10
"""Without a baseline, seconds above expectation are reported from a tenth of the expected mean on."""
SUSPECT = 0.10
"""Of a change that nothing may be named for, a cause of a tenth of it or more is told as suspected."""
UNEXPLAINED = 0.05
"""A rise of 5 % of mean TTFT that no cause explains is reported as such where its interval excludes zero; smaller ones
are ordinary variation."""


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


def decide(columns: Columns, point: Ledger, found: Assessment, tail: Floats, p99: TailChange) -> Verdict:
    """Return the statement: a cause that may be named, a rise that nothing here explains, or no change."""
    base_mean, total = float(point.base_mean[0]), float(point.total_excess[0])
    change = f"mean TTFT {'rose' if total >= 0 else 'fell'} by {_ms(abs(total))} ({total / base_mean:+.1%})"
    if abs(total) < _ROUNDING_S:
        change = "mean TTFT did not change"
    for index in found.order:
        if not found.passes[index]:
            continue
        excess, share = float(point.excess[0, index]), float(point.excess[0, index]) / base_mean
        critical = max(share, float(tail[index]) / max(p99.before_s, 1e-12)) >= CRITICAL
        cause = columns.mechanisms[index].cause.id
        reason = (
            f"{cause} adds {_ms(excess)} to mean TTFT (90 % interval {_ms(found.low[index])} to "
            f"{_ms(found.high[index])}; {share:.0%} of the baseline's {_ms(base_mean)}) and {_ms(tail[index])} at p99; "
            f"{change}{_differs(columns, found, tail, index)}"
        )
        return Verdict(
            status="cause",
            cause=cause,
            confidence=float(found.confidence[index]),
            reason=reason,
            severity="critical" if critical else "warning",
        )
    rises = total > UNEXPLAINED * base_mean
    if rises and found.total_low > UNEXPLAINED * base_mean:
        return _unexplained_rise(columns, point, found, change)
    if p99.low_s > CRITICAL * p99.before_s:
        largest = max(range(len(columns.mechanisms)), key=lambda i: float(tail[i]))
        names = f"; largest there: {columns.mechanisms[largest].cause.id} ({_ms(tail[largest])})"
        return Verdict(
            status="abstain",
            cause=None,
            confidence=float(1 - max(found.confidence, default=0.0)),
            reason=f"the mean hardly changed, but p99 rose by {_ms(p99.change_s)} (90 % interval {_ms(p99.low_s)} to "
            f"{_ms(p99.high_s)}; {p99.change_s / p99.before_s:.0%} of the baseline's {_ms(p99.before_s)}), and no "
            f"cause could be named with confidence{names if tail[largest] > 0 else ''}; {change}",
        )
    if rises and found.total_low > 0:
        return _unexplained_rise(columns, point, found, change)
    return Verdict(
        status="no_change",
        cause=None,
        confidence=min(found.quiet, 0.99),
        reason=f"no cause adds more than {found.bar:.1%} of the baseline's {_ms(base_mean)} with confidence; {change}, "
        f"90 % interval {_ms(found.total_low)} to {_ms(found.total_high)}",
    )


def _unexplained_rise(columns: Columns, point: Ledger, found: Assessment, change: str) -> Verdict:
    unexplained, low = float(point.excess[0, -1]), float(found.low[-1])
    bar = max(MATERIAL * float(point.base_mean[0]), SUSPECT * float(point.total_excess[0]))
    suspects = [i for i in found.order if point.excess[0, i] > bar]
    names = ", ".join(f"{columns.mechanisms[i].cause.id} ({_ms(point.excess[0, i])})" for i in suspects[:3])
    reason = f"{change}, and no cause could be named with confidence: unexplained {_ms(unexplained)}"
    reason += more_work(columns.mechanisms)
    return Verdict(
        status="abstain",
        cause=None,
        confidence=float(1 - max(found.confidence, default=0.0)),
        reason=reason + (f"; suspected: {names}" if names else "") + (f" (at least {_ms(low)})" if low > 0 else ""),
    )


def _differs(columns: Columns, found: Assessment, tail: Floats, named: int) -> str:
    """Return what to add where another cause that may be named, or none, accounts for most of the change at p99."""
    largest = max((i for i in found.order if found.passes[i]), key=lambda i: float(tail[i]), default=named)
    if largest == named or tail[largest] <= 0:
        return ""
    return f"; p99 differs: there {columns.mechanisms[largest].cause.id} adds most, {_ms(tail[largest])}"


def no_time(span_s: float) -> Verdict | None:
    """Return the abstention where all requests arrived at one instant, else None."""
    if span_s > 0:
        return None
    return Verdict(
        status="abstain",
        cause=None,
        confidence=1.0,
        reason="all requests arrived at one instant: nothing can be compared over time",
        collect_next=("requests of a longer period, with arrival_s in seconds of wall-clock time",),
    )


def decide_standing(
    columns: Columns, point: Ledger, found: Assessment, tail: Floats, expected_p99: float, split: Split
) -> Verdict:
    """Return the statement without a baseline: a cause that costs seconds all along, or why none is named."""
    expected = float(point.base_mean[0])
    for index in found.order:
        if not found.passes[index]:
            continue
        excess = float(point.excess[0, index])
        share = max(excess / expected, float(tail[index]) / max(expected_p99, 1e-12))
        cause = columns.mechanisms[index].cause.id
        return Verdict(
            status="cause",
            cause=cause,
            confidence=float(found.confidence[index]),
            reason=f"{cause} adds about {_ms(excess)} to mean TTFT over the whole period ({_ms(found.low[index])} to "
            f"{_ms(found.high[index])}; {excess / expected:.0%} of the {_ms(expected)} expected from bytes, links and "
            f"peers) and {_ms(tail[index])} at p99",
            severity="critical" if share >= CRITICAL else "warning",
        )
    served = [s for s, name in enumerate(columns.stages) if name != QUEUE]
    unexplained = float(np.maximum(point.by_stage[0, served, -1], 0.0).sum())
    suspects = [
        i for i in found.order if point.excess[0, i] > found.bar * expected and not columns.mechanisms[i].cause.workload
    ]
    if suspects or unexplained > STANDING_UNEXPLAINED * expected:
        where = max(served, key=lambda s: float(point.by_stage[0, s, -1]))
        names = ", ".join(f"{columns.mechanisms[i].cause.id} ({_ms(point.excess[0, i])})" for i in suspects[:3])
        above = f", {_ms(unexplained)} unexplained, most of it in {columns.stages[where]}"
        return Verdict(
            status="abstain",
            cause=None,
            confidence=float(1 - max(found.confidence, default=0.0)),
            reason="without a baseline, TTFT is above what bytes, links and peers let expect, and no cause could be "
            "named with confidence" + (f"; suspected: {names}" if names else "") + above,
        )
    tail_p = 1.0 if split.candidate is None else bridge_tail(split.candidate.statistic)
    largest = next((i for i in found.order if point.excess[0, i] > found.bar * expected), None)
    about = (
        ""
        if largest is None
        else (
            f"; largest above quiet times: {columns.mechanisms[largest].cause.id}, {_ms(point.excess[0, largest])}, "
            "which may be normal"
        )
    )
    return Verdict(
        status="no_change",
        cause=None,
        confidence=min(0.99, tail_p, found.quiet),
        reason="TTFT and its stages did not change over the period, and no fault costs more than "
        f"{found.bar:.1%} of the {_ms(expected)} expected from bytes, links and peers{about}",
    )


def too_few(*rows: int, windowed: bool = False) -> Verdict | None:
    """Return the abstention for too few requests, given their number in each period, or None where there are enough."""
    if sum(rows) >= (LEAST_WINDOWS if windowed else LEAST_ROWS) and min(rows) >= (
        LEAST_WINDOWS_PER_PERIOD if windowed else LEAST_ROWS_PER_PERIOD
    ):
        return None
    if windowed:
        counted = " before and ".join(str(one) for one in rows) + (" after the change" if len(rows) > 1 else " in all")
        return Verdict(
            status="abstain",
            cause=None,
            confidence=1.0,
            reason=f"too few windows of histograms to name a cause: {counted}; at least {LEAST_WINDOWS} are needed, "
            f"{LEAST_WINDOWS_PER_PERIOD} of them on each side of the change",
            collect_next=("a longer period, or a shorter scrape interval",),
        )
    counted = " before and ".join(str(one) for one in rows) + (" after the change" if len(rows) > 1 else " in all")
    return Verdict(
        status="abstain",
        cause=None,
        confidence=1.0,
        reason=f"too few requests to name a cause: {counted}; at least {LEAST_ROWS} are needed, "
        f"{LEAST_ROWS_PER_PERIOD} of them on each side of the change",
        collect_next=("requests of a longer period, or a larger share of them",),
    )


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if abs(seconds) < 1 else f"{seconds:.3g} s"
