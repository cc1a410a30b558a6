"""What is said of an assessment: a cause, a rise that nothing explains, no change, or that it cannot be told."""

import numpy as np

from kvdiag.attribution.assessment import CRITICAL, MATERIAL, Assessment
from kvdiag.attribution.changepoint import bridge_tail
from kvdiag.attribution.columns import Columns
from kvdiag.attribution.frame import Floats
from kvdiag.attribution.ledger import QUEUE, Ledger
from kvdiag.attribution.more_work import more_work
from kvdiag.attribution.split import Split
from kvdiag.attribution.tail import TailChange
from kvdiag.model.diagnosis import Verdict

LEAST_ROWS = 120
"""Below, even the right cause is sized wrongly by half; measured on thinned simulated incidents."""
LEAST_ROWS_PER_PERIOD = 30
LEAST_WINDOWS = 40
LEAST_WINDOWS_PER_PERIOD = 10
"""Each of them is the mean of many requests."""
_ROUNDING_S = 1e-6
"""What sums of many seconds may be off by, and nothing to a TTFT."""
STANDING_UNEXPLAINED = 0.10
"""Without a baseline, seconds above expectation are reported from a tenth of the expected mean on."""
SUSPECT = 0.10
"""Of a change that nothing may be named for, a cause of a tenth of it or more is told as suspected."""
UNEXPLAINED = 0.05
"""A rise of 5 % of mean TTFT that no cause explains is reported as such where its interval excludes zero; smaller ones
are ordinary variation."""


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
