"""How the verdict was reached, step by step, with the numbers that let an engineer redo it by hand."""

from kvdiag.attribution.assessment import GATE, Assessment
from kvdiag.attribution.blocks import Moments
from kvdiag.attribution.causes.base import Dose, Load
from kvdiag.attribution.clocks import PAD_S
from kvdiag.attribution.columns import WINSOR, Columns
from kvdiag.attribution.frame import CLOCK_PAD_S, CONTENTION, Frame
from kvdiag.attribution.ledger import Ledger
from kvdiag.attribution.occupancy import Occupancy
from kvdiag.attribution.split import Split
from kvdiag.attribution.standing import Standing
from kvdiag.attribution.tail import TailChange
from kvdiag.derive.stages import fine_stages
from kvdiag.model.diagnosis import Period, StageShare, Step, Verdict
from kvdiag.model.missing import Missing


def explain(
    frame: Frame,
    columns: Columns,
    split: Split,
    occupancies: tuple[Occupancy, ...],
    blocks: list[Moments],
    replicates: int,
    point: Ledger,
    found: Assessment,
    stages: tuple[StageShare, ...],
    periods: tuple[Period, Period],
    verdict: Verdict,
    p99: TailChange,
) -> tuple[Step, ...]:
    """Return the steps in the order in which they were taken."""
    return (
        _periods(split, periods),
        stage_step(stages, float(frame.stages.ttft_s.var())),
        _clocks(frame),
        _mechanisms(columns),
        _books(columns, point),
        _waits(occupancies, columns),
        _tests(columns, point, found, blocks, replicates, p99),
        Step(title="Verdict", lines=(f"{verdict.status}: {verdict.reason}",)),
    )


CHANGED = "Which mechanisms changed (only these may explain an excess)"


def _periods(split: Split, periods: tuple[Period, Period]) -> Step:
    lines = [split.how]
    for name, one in zip(("baseline", "incident"), periods, strict=True):
        lines.append(
            f"{name}: {one.requests} requests in {one.seconds:.1f} s; TTFT mean {one.mean_s * 1e3:.4g} ms, "
            f"p50 {one.p50_s * 1e3:.4g} ms, p99 {one.p99_s * 1e3:.4g} ms, variance {one.variance_s2:.4g} s²"
        )
    return Step(title="Periods", lines=tuple(lines))


def stage_step(stages: tuple[StageShare, ...], variance: float) -> Step:
    """Return the exact split as sums to check: shares add up to 100 %, means to the change of mean TTFT."""
    lines = [f"Var(TTFT) = {variance:.6g} s² = sum over stages of Cov(stage, TTFT)"]
    for one in stages:
        excess = "" if one.excess_mean_s is None else f"; mean {one.excess_mean_s * 1e3:+.4g} ms"
        lines.append(
            f"{one.stage}: {one.share_of_variance:.2%} = {one.share_within:.2%} within periods "
            f"+ {one.share_between:.2%} between them{excess}"
        )
    lines.append(f"sum: {sum(one.share_of_variance for one in stages):.2%}")
    return Step(title="Exact split over stages (law of total covariance)", lines=tuple(lines))


def _clocks(frame: Frame) -> Step:
    nodes = sorted({*frame.node_names("prefill"), *frame.node_names("decode")})
    lines = [
        f"{node}: {frame.offsets[node].seconds:+.2f} s (r √n = {frame.offsets[node].score:.1f}), taken off; windows on "
        f"its counters ± {PAD_S:g} s"
        for node in nodes
        if node in frame.offsets
    ]
    rest = [node for node in nodes if node not in frame.offsets]
    if rest:
        lines.append(f"{', '.join(rest)}: not found, as recorded; windows ± {CLOCK_PAD_S:g} s")
    title = "Clocks of the nodes, by their NICs' bytes against those of their requests"
    return Step(title=title, lines=tuple(lines) or ("no node names",))


def _mechanisms(columns: Columns, *, changed: str = "changed", title: str = CHANGED) -> Step:
    lines = []
    for one in columns.mechanisms:
        if isinstance(one.dose, Dose):
            state = changed if one.dose.moved else f"not {changed}"
            facts = "; ".join(f"{line.name} {line.value}" for line in one.dose.evidence[:2])
            lines.append(f"{one.cause.id}: {state}" + (f" ({facts})" if facts else ""))
        elif one.cause.dose is not None and isinstance(one.dose, Missing):
            lines.append(f"{one.cause.id}: cannot be seen: {one.dose.missing}")
        if isinstance(one.load, Load):
            lines.append(f"{one.cause.id}: work offered to prefill × {one.load.ratio:.3f} ± {one.load.error:.3f}")
    return Step(title=title, lines=tuple(lines))


def _books(columns: Columns, point: Ledger) -> Step:
    lines = [
        "expected = the baseline's own slopes on tokens and bytes; the rest is regressed, non-negatively, on the doses "
        f"of the causes above (slopes from values cut at {WINSOR:.1%}), and booked up to the observed excess"
    ]
    names = [*(one.cause.id for one in columns.mechanisms), "unexplained"]
    for s, stage in enumerate(columns.stages):
        parts = [
            f"{names[c]} {seconds * 1e3:+.4g} ms"
            for c, seconds in enumerate(point.by_stage[0, s])
            if abs(seconds) > 5e-6
        ]
        lines.append(f"{stage}: {point.stage_excess[0, s] * 1e3:+.4g} ms = {' '.join(parts) or 'nothing'}")
    return Step(title="Excess seconds of each stage, booked to causes", lines=tuple(lines))


def _waits(occupancies: tuple[Occupancy, ...], columns: Columns) -> Step:
    lines = []
    for one in occupancies:
        pushed = [columns.mechanisms[i].cause.id for stage, i in columns.push_of if stage == one.waiting]
        lines.append(
            f"{one.waiting} follows Lindley's recursion with one server per {one.side} node, held through {one.until} "
            f"(misfit {one.misfit:.1%}, {one.determined:.0%} of their variance); recomputed without the seconds of "
            f"{', '.join(pushed) or 'no mechanism'}, "
            "the difference is theirs"
        )
    if not lines:
        lines = ["no waiting stage follows from one request at a time: queue seconds go to load that grew, or nowhere"]
    return Step(title="Waits that follow from the service behind them", lines=tuple(lines))


def _tests(
    columns: Columns,
    point: Ledger,
    found: Assessment,
    blocks: list[Moments],
    replicates: int,
    p99: TailChange | None = None,
) -> Step:
    lines = [
        f"{replicates} circular block bootstraps; blocks of {blocks[0].block_s:.3g} s in the baseline, "
        f"{blocks[1].block_s:.3g} s in the incident; intervals are 90 %",
        f"to be named: mean excess and its lower bound above {found.bar:.1%} of the baseline's mean "
        f"({found.bar * point.base_mean[0] * 1e3:.3g} ms) and confidence >= {GATE:g}",
    ]
    for index in found.order:
        excess = float(point.excess[0, index])
        if abs(excess) < 1e-6:
            continue
        lines.append(
            f"{columns.mechanisms[index].cause.id}: {excess * 1e3:+.4g} ms ({found.low[index] * 1e3:+.4g} to "
            f"{found.high[index] * 1e3:+.4g}), confidence {found.confidence[index]:.2f} (raw {found.raw[index]:.2f}): "
            f"{'may be named' if found.passes[index] else 'is not named'}"
        )
    lines.append(
        f"unexplained: {point.excess[0, -1] * 1e3:+.4g} ms ({found.low[-1] * 1e3:+.4g} to {found.high[-1] * 1e3:+.4g})"
    )
    if p99 is not None:
        lines.append(
            f"p99 of TTFT: {p99.before_s * 1e3:.4g} ms {p99.change_s * 1e3:+.4g} ms ({p99.low_s * 1e3:+.4g} to "
            f"{p99.high_s * 1e3:+.4g}), resampled by the same blocks"
        )
    lines.append("confidence is what the raw one was worth on simulated clusters (reliability.json)")
    return Step(title="Tests", lines=tuple(lines))


def standing(
    frame: Frame,
    standing: Standing,
    split: Split,
    replicates: int,
    point: Ledger,
    found: Assessment,
    stages: tuple[StageShare, ...],
    verdict: Verdict,
) -> tuple[Step, ...]:
    """Return the steps where there is no baseline, but an expectation."""
    lines = [
        f"{one.stage}: mean {one.mean_incident_s * 1e3:.4g} ms, expected {one.mean_expected_s * 1e3:.4g} ms"
        for one in stages
        if one.mean_expected_s is not None and (one.mean_incident_s > 0 or one.mean_expected_s > 0)
    ]
    how = (
        "expected: nothing in stages that a warmed-up deployment does not have; transfers at "
        f"{frame.seconds_per_byte() * 1e9:.3g} s/GB, {CONTENTION:g} times the best tenth; the queue of quiet times; "
        "everything else as recorded. Counters that a healthy node does not move are expected at zero, others at what "
        "the quietest quarter of their peers show"
    )
    return (
        Step(title="Periods", lines=(split.how, "no baseline: the whole period is held against expectation")),
        stage_step(stages, float(frame.stages.ttft_s.var())),
        Step(title="Expectation", lines=(how, *lines)),
        _clocks(frame),
        _mechanisms(standing.columns, changed="present", title="Which mechanisms are present, beside what is usual"),
        _books(standing.columns, point),
        _tests(standing.columns, point, found, [standing.blocks, standing.blocks], replicates),
        Step(title="Verdict", lines=(f"{verdict.status}: {verdict.reason}",)),
    )


def whole_period(split: Split, stages: tuple[StageShare, ...], variance: float, verdict: Verdict) -> tuple[Step, ...]:
    """Return the steps where there is no baseline."""
    return (
        Step(title="Periods", lines=(split.how,)),
        stage_step(stages, variance),
        Step(title="Verdict", lines=(f"{verdict.status}: {verdict.reason}",)),
    )


def collect_next(columns: Columns, point: Ledger, verdict: Verdict) -> tuple[str, ...]:
    """Return what to record so that an abstention could become a verdict: what acts where the unexplained excess is."""
    if verdict.status != "abstain":
        return ()
    least = UNEXPLAINED_STAGE * float(point.base_mean[0])
    open_stages = [s for s in range(len(columns.stages)) if point.by_stage[0, s, -1] > least]
    parts = {part for s in open_stages for part in fine_stages(columns.stages[s])}
    wanted = tuple(
        f"for {one.cause.id}: {one.dose.missing}"
        for one in columns.mechanisms
        if one.cause.dose is not None and isinstance(one.dose, Missing) and parts & set(one.cause.stages)
    )
    where = ", ".join(columns.stages[s] for s in open_stages) or "no single stage"
    return (*wanted, f"what ran on the hosts at that time; the unexplained excess is in {where}")


UNEXPLAINED_STAGE = 0.02
"""Stages whose unexplained excess is below 2 % of the baseline's mean TTFT need no further evidence."""
