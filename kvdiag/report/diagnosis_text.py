"""The text form of a diagnosis: the verdict first, then causes, stages, and what could not be seen."""

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from kvdiag.model.diagnosis import AttributedCause, Diagnosis, Period, StageShare, Verdict

_STYLE = {"critical": "bold red", "warning": "bold yellow"}
LEAST_SHOWN_S = 5e-5
"""Causes that move the mean by less than 0.05 ms stay out of the table; JSON has them all."""
LEAST_UNACCOUNTED = 5e-4
LEAST_TOLD = 5e-5
"""Milliseconds: a twentieth of a microsecond, which no clock here tells apart from nothing."""
DETAILED = 3


def render(diagnosis: Diagnosis, origin: str, *, explain: bool = False) -> RenderableType:
    """Return the whole text; `explain` adds how the verdict was reached, step by step."""
    parts: list[RenderableType] = [_headline(diagnosis.verdict, origin), _periods(diagnosis)]
    shown = [cause for cause in diagnosis.causes if abs(cause.excess_mean_s) >= LEAST_SHOWN_S]
    if shown:
        parts += [Text(_heading(diagnosis), "bold"), _causes(shown), _details(shown)]
    parts += [Text("\nStages: exact shares of Var(TTFT), adding up to 100 %", "bold"), _stages(diagnosis.stages)]
    parts.append(_footnotes(diagnosis))
    if explain:
        parts.append(_steps(diagnosis))
    return Group(*parts)


def _heading(diagnosis: Diagnosis) -> str:
    over = "the baseline" if diagnosis.baseline else "expectation (no baseline; wider intervals)"
    return f"\nCauses, by excess over {over}"


def seconds(value: float) -> str:
    """Return a duration with its sign in the unit that reads best."""
    return f"{value:+.3g} s" if abs(value) >= 1 else f"{_clean(value * 1e3)} ms"


def _clean(value: float) -> str:
    """Return a signed figure of three digits; what is smaller than any clock tells is rounding, and 0."""
    return "0" if abs(value) < LEAST_TOLD else f"{value:+.3g}"


def _headline(verdict: Verdict, origin: str) -> Text:
    text = Text()
    if verdict.severity is not None:
        text.append(verdict.severity.upper(), _STYLE[verdict.severity])
    elif verdict.status == "no_change":
        text.append("NO CHANGE", "bold green")
    else:
        text.append("NOT ENOUGH EVIDENCE", "bold yellow")
    text.append(f" (confidence {verdict.confidence:.2f}): {verdict.reason}\n").append(f"{origin}\n", "dim")
    for line in verdict.collect_next:
        text.append("  Collect: ", "bold").append(f"{line}\n")
    return text


def _periods(diagnosis: Diagnosis) -> Text:
    text = Text(f"Split: {diagnosis.data.split}\n")
    for name, period in (("baseline", diagnosis.baseline), ("incident", diagnosis.incident)):
        if period is not None:
            text.append(f"  {name if diagnosis.baseline else 'whole period'}: {_period(period)}\n")
    text.rstrip()
    return text


def _period(period: Period) -> str:
    return (
        f"{period.requests} requests in {period.seconds:.1f} s, TTFT mean {period.mean_s * 1e3:.4g} ms, "
        f"p50 {period.p50_s * 1e3:.4g} ms, p99 {period.p99_s * 1e3:.4g} ms, standard deviation "
        f"{period.variance_s2**0.5 * 1e3:.4g} ms"
    )


def _table(headings: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> Text:
    """Return aligned columns, the first to the left; nothing is cut off where the terminal is narrow."""
    widths = [max(len(row[column]) for row in (headings, *rows)) for column in range(len(headings))]
    text = Text(no_wrap=True, overflow="ignore")
    for number, row in enumerate((headings, *rows)):
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        text.append("  ".join(cells).rstrip() + "\n", "italic" if number == 0 else "")
    text.rstrip()
    return text


def _causes(causes: list[AttributedCause]) -> Text:
    rows = [
        (
            cause.id,
            _between(cause.excess_mean_s, cause.excess_mean_low_s, cause.excess_mean_high_s),
            seconds(cause.excess_p99_s),
            _shares(cause.share_of_variance, cause.share_low, cause.share_high),
            "" if cause.id == "unexplained" else f"{cause.confidence:.2f}",
        )
        for cause in causes
    ]
    return _table(("cause", "mean (90 % interval)", "p99", "share of variance (90 %)", "confidence"), rows)


def _between(value: float, low: float | None, high: float | None) -> str:
    """Return a duration and its interval in one unit, that of the largest of them."""
    ends = [0.0 if end is None else end for end in (low, high)]
    scale, unit = (1.0, "s") if max(abs(value), *map(abs, ends)) >= 1 else (1e3, "ms")
    return f"{_clean(value * scale)} ({_clean(ends[0] * scale)} to {_clean(ends[1] * scale)}) {unit}"


def _shares(value: float, low: float, high: float) -> str:
    # Adding 0 makes a rounded -0.0 a 0.0.
    shown, least, most = (round(one * 100, 1) + 0.0 for one in (value, low, high))
    return f"{shown:.1f}% ({least:.1f} to {most:.1f})"


def _details(causes: list[AttributedCause]) -> Text:
    text = Text()
    for cause in [one for one in causes if one.excess_mean_s > 0 and one.id != "unexplained"][:DETAILED]:
        text.append(f"\n{cause.id}", "bold").append(f" at {', '.join(cause.nodes)}\n" if cause.nodes else "\n")
        for what, names in (("pairs", cause.pairs), ("devices", cause.devices)):
            if names:
                text.append(f"  {what} that stand out: {', '.join(names)}\n")
        text.append(f"  without it: p50 {seconds(-cause.excess_p50_s)}, p99 {seconds(-cause.excess_p99_s)}\n")
        for line in cause.evidence:
            wanted = f" (changed if {line.threshold})" if line.threshold else ""
            text.append(f"  {line.name}: {line.value}{wanted}  [{line.source}]\n")
        text.append("  Do: ", "bold").append(f"{cause.action}\n")
    text.rstrip()
    return text


def _stages(stages: tuple[StageShare, ...]) -> Text:
    rows = []
    whole = sum(abs(stage.mean_incident_s) for stage in stages)
    for stage in stages:
        if (
            stage.stage == "unaccounted"
            and max(abs(stage.share_of_variance), abs(stage.mean_incident_s) / whole) < 5e-4
        ):
            continue
        usual = stage.mean_expected_s if stage.mean_baseline_s is None else stage.mean_baseline_s
        before = "" if usual is None else f"{usual * 1e3:.4g} ms"
        excess = stage.excess_mean_s
        if excess is None:
            rest = "" if usual is None else seconds(stage.mean_incident_s - usual)
        else:
            rest = _between(excess, stage.excess_low_s, stage.excess_high_s)
        rows.append(
            (
                stage.stage,
                _shares(stage.share_of_variance, stage.share_low, stage.share_high),
                before,
                f"{stage.mean_incident_s * 1e3:.4g} ms",
                rest,
            )
        )
    expected = any(stage.mean_expected_s is not None for stage in stages)
    last = ("expected", "mean", "excess") if expected else ("before", "after", "excess (90 % interval)")
    return _table(("stage", "share of variance (90 %)", *last), rows)


def _notes(stages: tuple[StageShare, ...]) -> tuple[str, ...]:
    return tuple(f"{stage.stage}: {stage.share_of_variance:.1%} is {stage.note}" for stage in stages if stage.note)


def _footnotes(diagnosis: Diagnosis) -> Text:
    text = Text()
    data = diagnosis.data
    sampled = "" if data.sampled is None or data.sampled >= 1 else f", {data.sampled:.0%} of all"
    text.append(f"\n{data.requests} requests{sampled}; {data.granularity} stages\n")
    for heading, lines in (("Could not be seen", data.missing), ("Notes", (*_notes(diagnosis.stages), *data.notes))):
        if lines:
            text.append(f"{heading}:\n", "bold")
            for line in lines:
                text.append(f"  {line}\n")
    text.rstrip()
    return text


def _steps(diagnosis: Diagnosis) -> Text:
    text = Text("\nHow this was reached", "bold")
    for number, step in enumerate(diagnosis.steps, start=1):
        text.append(f"\n{number}. {step.title}\n", "bold")
        for line in step.lines:
            text.append(f"   {line}\n")
    text.rstrip()
    return text
