"""A diagnosis as blocks: the verdict, TTFT stage by stage, causes with their evidence, and how it was reached."""

from kvdiag.model.diagnosis import AttributedCause, Diagnosis, Period, StageShare
from kvdiag.model.finding import Evidence
from kvdiag.report.html import charts
from kvdiag.report.html.blocks import (
    Block,
    Card,
    Cell,
    Chart,
    Empty,
    Folded,
    Headline,
    Lines,
    Section,
    State,
    Table,
    Tile,
    Tiles,
    cell,
    table,
)
from kvdiag.report.html.units import change, count, duration, interval, number, percent, shares

LEAST_SHOWN_S = 5e-5
"""Causes that move the mean by less stand in the table of the JSON document only."""
MOST_PARTS = 6
NETWORK = ("wire", "kv_wait")
"""Stages that are never drawn as a part of others: is it the network?"""
MOST_BARS = 8
UNEXPLAINED = "unexplained"
MEANING = {
    "queue": "waiting before prefill",
    "prefill": "prefill compute",
    "admit": "decode: waiting for KV slots",
    "pull_wait": "waiting for a transfer slot",
    "setup": "connection, handshake, queue pairs",
    "register": "memory registration in the request's path",
    "handle": "waiting for a transfer handle",
    "post": "building and posting descriptors",
    "wire": "on the wire until completion is seen",
    "first_step": "KV cache present to first token",
    "pre_transfer": "admission, slot, set-up, registration, handle: not split",
    "transfer": "posting and wire: not split",
    "kv_wait": "prefill's end to KV cache present: not split",
    "unaccounted": "covered by no recorded stage",
}


def headline(diagnosis: Diagnosis) -> Headline:
    """Return the verdict with the number that matters and the action of the cause it names."""
    verdict = diagnosis.verdict
    cause = next((one for one in diagnosis.causes if one.id == verdict.cause), None)
    sure = f"confidence {verdict.confidence:.2f}"
    if verdict.status == "cause" and cause is not None:
        where = f" at {', '.join(cause.nodes)}" if cause.nodes else ""
        state: State = "critical" if verdict.severity == "critical" else "warning"
        actions = (cause.action, *verdict.collect_next)
        note = f"of mean TTFT from {cause.id}{where} · {sure}"
        return Headline(
            state=state,
            word=(verdict.severity or "warning").upper(),
            sentence=_sentence(verdict.reason),
            figure=change(cause.excess_mean_s),
            figure_note=note,
            actions=actions,
        )
    period = diagnosis.incident or diagnosis.baseline
    figure = "" if period is None else duration(period.mean_s)
    note = "" if period is None else f"mean TTFT, p99 {duration(period.p99_s)} · {sure}"
    if verdict.status == "no_change":
        actions = verdict.collect_next or ("nothing: this recording gives no cause for action",)
        return Headline(state="good", word="NO CHANGE", sentence=_sentence(verdict.reason), figure=figure,
                        figure_note=note, actions=actions)  # fmt: skip
    return Headline(
        state="unknown",
        word="NOT ENOUGH EVIDENCE",
        sentence=_sentence(verdict.reason),
        figure=figure,
        figure_note=note,
        actions=verdict.collect_next or ("record more requests, and the counters listed under Data and method",),
        actions_title="Collect next",
    )


def stages_section(diagnosis: Diagnosis) -> Section:
    """Return where TTFT goes, before and during the incident, and what its variance consists of."""
    blocks: list[Block] = [Tiles(tiles=_tiles(diagnosis))]
    if not diagnosis.stages:
        reason = "not observable here: the requests have no stage durations"
        return Section(title="TTFT, stage by stage", blocks=(*blocks, Empty(title="No stages", reason=reason)))
    first, second = _bar_names(diagnosis)
    parts, rows = _stack(diagnosis.stages, first, second)
    bars = [bar for bar in (first, second) if any(row["bar"] == bar for row in rows)]
    summary = "; ".join(f"{bar}: " + ", ".join(f"{row['part']} {row['text']}" for row in rows if row["bar"] == bar)
                        for bar in bars)  # fmt: skip
    blocks.append(Chart(title="Mean TTFT by stage", summary=summary, spec=charts.stacked(rows, bars, parts)))
    shown = [one for one in diagnosis.stages if abs(one.share_of_variance) >= 5e-4 or one.stage != "unaccounted"]
    variance = [
        {"name": _plain(one.stage), "value": one.share_of_variance, "low": one.share_low, "high": one.share_high,
         "text": shares(one.share_of_variance, one.share_low, one.share_high)}
        for one in shown
    ]  # fmt: skip
    said = ", ".join(f"{row['name']} {row['text']}" for row in variance)
    note = "Shares are exact and add up to 100 %; the lines are 90 % intervals. A negative share: that stage is short "
    note += "where TTFT is long."
    blocks.append(
        Chart(title="Share of TTFT variance", summary=said, spec=charts.intervals(variance, "ratio"), note=note)
    )
    blocks.append(_stage_table(shown, second))
    lead = "TTFT is the sum of its stages: the means say where time goes, the shares of variance why it varies."
    return Section(title="TTFT, stage by stage", blocks=tuple(blocks), lead=lead)


def causes_section(diagnosis: Diagnosis) -> Section:
    """Return the ranked causes, and the evidence and action of those that add something."""
    shown = [one for one in diagnosis.causes if abs(one.excess_mean_s) >= LEAST_SHOWN_S]
    if not shown:
        why = "no cause moves mean TTFT by 0.05 ms or more" if diagnosis.causes else "no cause was examined"
        return Section(title="Causes", blocks=(Empty(title="No causes", reason=f"{why}: {diagnosis.verdict.reason}"),))
    over = "the baseline" if diagnosis.baseline else "expectation; there is no baseline, so intervals are wide"
    rows = [
        {"name": one.id, "value": one.excess_mean_s, "low": one.excess_mean_low_s, "high": one.excess_mean_high_s,
         "text": interval(one.excess_mean_s, one.excess_mean_low_s, one.excess_mean_high_s)}
        for one in shown[:MOST_BARS]
    ]  # fmt: skip
    blocks: list[Block] = [
        Chart(
            title=f"Added to mean TTFT, over {over}",
            summary=", ".join(f"{row['name']} {row['text']}" for row in rows),
            spec=charts.intervals(rows, "seconds", "var(--c6)"),
            note="The lines are 90 % intervals. The bars add up to the change of mean TTFT.",
            wide=True,
        ),
        _cause_table(shown, len(diagnosis.causes) - len(shown)),
    ]
    verdict = diagnosis.verdict
    blocks += [
        _card(one, named=True, critical=verdict.severity == "critical") for one in shown if one.id == verdict.cause
    ]
    others = tuple(
        _card(one, named=False, critical=False)
        for one in shown
        if one.id not in (UNEXPLAINED, verdict.cause) and one.excess_mean_s > 0
    )
    if others:
        title = f"Evidence of {count(len(others), 'cause')} that the verdict does not name"
        blocks.append(Folded(title=title, blocks=others))
    return Section(title="Causes", blocks=tuple(blocks))


def method_section(diagnosis: Diagnosis, more: tuple[Block, ...] = ()) -> Section:
    """Return what was examined, what could not be, and every step of how the verdict was reached."""
    data = diagnosis.data
    sampled = "" if data.sampled is None or data.sampled >= 1 else f", {percent(data.sampled)} of all"
    about = (
        f"{count(data.requests, 'request')}{sampled}; {data.granularity} stages",
        f"baseline and incident: {data.split}",
        *data.notes,
        *(
            f"{_plain(one.stage)}: {percent(one.share_of_variance)} is {one.note}"
            for one in diagnosis.stages
            if one.note
        ),
    )
    blocks: list[Block] = [Lines(title="Data", lines=about)]
    if data.missing:
        blocks.append(Lines(title="Not observable here", lines=data.missing))
    steps = tuple(
        Lines(title=f"{number}. {step.title}", lines=step.lines) for number, step in enumerate(diagnosis.steps, start=1)
    )
    if steps:
        blocks.append(Folded(title="How the verdict was reached, step by step", blocks=steps))
    return Section(title="Data and method", blocks=(*blocks, *more))


def evidence_table(lines: tuple[Evidence, ...]) -> Table:
    """Return evidence in columns: what, its value, from where it counts, where it was read."""
    rows = [
        (cell(one.name), Cell(one.value, strong=True), cell(one.threshold or ""), cell(one.source)) for one in lines
    ]
    return Table(
        title="Evidence",
        columns=table("", ("evidence", "value", "counts if", "read from"), ()).columns,
        rows=tuple(rows),
        sortable=False,
    )


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] if text and "." not in text.split(" ", 1)[0] else text


def _plain(stage: str) -> str:
    return stage.removesuffix("_s")


def _bar_names(diagnosis: Diagnosis) -> tuple[str, str]:
    if diagnosis.baseline is not None:
        return "baseline", "incident"
    return "expected", "observed"


def _tiles(diagnosis: Diagnosis) -> tuple[Tile, ...]:
    before, after = diagnosis.baseline, diagnosis.incident
    if after is None:
        return (Tile("requests", f"{diagnosis.data.requests:,}"),)
    if before is None:
        return (
            Tile("mean TTFT", duration(after.mean_s), "whole period"),
            Tile("p50", duration(after.p50_s)),
            Tile("p99", duration(after.p99_s)),
            Tile("standard deviation", duration(max(after.variance_s2, 0.0) ** 0.5)),
            Tile("requests", f"{after.requests:,}", f"in {_length(after)}"),
        )
    return (
        _moved("mean TTFT", before.mean_s, after.mean_s),
        _moved("p50", before.p50_s, after.p50_s),
        _moved("p99", before.p99_s, after.p99_s),
        _moved("standard deviation", max(before.variance_s2, 0.0) ** 0.5, max(after.variance_s2, 0.0) ** 0.5),
        Tile("requests", f"{before.requests:,} → {after.requests:,}", f"in {_length(before)} and {_length(after)}"),
    )


def _moved(label: str, before: float, after: float) -> Tile:
    moved = f"{'+' if after >= before else ''}{percent(after / before - 1)}" if before > 0 else ""
    return Tile(label, f"{duration(before)} → {duration(after)}", moved)


def _length(period: Period) -> str:
    return f"{period.seconds:.0f} s" if period.seconds < 600 else f"{number(period.seconds / 60)} min"


def _stack(stages: tuple[StageShare, ...], first: str, second: str) -> tuple[list[str], list[dict[str, str | float]]]:
    """Return the parts of the bars, the largest MOST_PARTS in the order of time and the rest as one, and the rows."""

    def before(one: StageShare) -> float | None:
        return one.mean_expected_s if one.mean_baseline_s is None else one.mean_baseline_s

    named = [one for one in stages if one.stage != "unaccounted"]
    largest = sorted(named, key=lambda one: -max(one.mean_incident_s, before(one) or 0.0))[:MOST_PARTS]
    kept = [one for one in stages if one in largest or one.stage in NETWORK]
    rest = [one for one in stages if one not in kept]
    rows: list[dict[str, str | float]] = []
    for bar, value_of in ((first, before), (second, lambda one: one.mean_incident_s)):
        values = [value_of(one) for one in stages]
        if all(value is None for value in values):
            continue
        rows += [
            {"bar": bar, "part": _plain(one.stage), "value": max(value, 0.0), "text": duration(value)}
            for one in kept
            if (value := value_of(one)) is not None
        ]
        left = sum(value_of(one) or 0.0 for one in rest)
        rows.append({"bar": bar, "part": "other", "value": max(left, 0.0), "text": duration(left)})
    return [*(_plain(one.stage) for one in kept), "other"], rows


def _stage_table(stages: list[StageShare], second: str) -> Table:
    expected = any(one.mean_expected_s is not None for one in stages)
    rows = []
    for one in stages:
        usual = one.mean_expected_s if one.mean_baseline_s is None else one.mean_baseline_s
        excess = one.excess_mean_s
        if excess is None and usual is not None:
            excess = one.mean_incident_s - usual
        said = "–" if excess is None else interval(excess, one.excess_low_s, one.excess_high_s)
        rows.append(
            (
                Cell(_plain(one.stage), strong=True, note=MEANING.get(_plain(one.stage), "")),
                cell(duration(usual), usual),
                cell(duration(one.mean_incident_s), one.mean_incident_s),
                cell(said, excess),
                cell(shares(one.share_of_variance, one.share_low, one.share_high), one.share_of_variance),
                cell(percent(one.share_within), one.share_within),
                cell(percent(one.share_between), one.share_between),
            )
        )
    heads = ("stage", f"#mean, {'expected' if expected else 'baseline'}", f"#mean, {second}", "#excess (90 %)",
             "#share of variance (90 %)", "#within periods", "#between periods")  # fmt: skip
    return table("Stages", heads, rows)


def _cause_table(causes: list[AttributedCause], left_out: int) -> Table:
    rows = [
        (
            Cell(one.id, strong=True),
            cell(interval(one.excess_mean_s, one.excess_mean_low_s, one.excess_mean_high_s), one.excess_mean_s),
            cell(change(one.excess_p50_s), one.excess_p50_s),
            cell(change(one.excess_p99_s), one.excess_p99_s),
            cell(shares(one.share_of_variance, one.share_low, one.share_high), one.share_of_variance),
            cell("" if one.id == UNEXPLAINED else f"{one.confidence:.2f}", one.confidence),
            cell(", ".join(one.nodes) or "–"),
        )
        for one in causes
    ]
    heads = ("cause", "#mean (90 %)", "#p50", "#p99", "#share of variance (90 %)", "#confidence", "where")
    note = f"{count(left_out, 'further cause')} moved the mean by less than 0.05 ms." if left_out else ""
    return table("Causes, by what they add", heads, rows, note)


def _card(cause: AttributedCause, *, named: bool, critical: bool) -> Card:
    facts = [("where", ", ".join(cause.nodes))] if cause.nodes else []
    facts += [("pairs that stand out", ", ".join(cause.pairs))] if cause.pairs else []
    facts += [("devices that stand out", ", ".join(cause.devices))] if cause.devices else []
    facts.append(("without it", f"p50 {change(-cause.excess_p50_s)}, p99 {change(-cause.excess_p99_s)}"))
    state: State = ("critical" if critical else "warning") if named else "unknown"
    return Card(
        state=state,
        badge="named" if named else "not named",
        title=f"{cause.id}: {change(cause.excess_mean_s)} of mean TTFT",
        facts=tuple(facts),
        evidence=evidence_table(cause.evidence) if cause.evidence else None,
        action=cause.action,
        reference=f"kvdiag explain {cause.id}" if named else "",
    )
