"""The text form of a demo: what was done against what was found, and where to look further."""

import shutil
import sys
from pathlib import Path

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from kvdiag.model.demo import DemoDocument
from kvdiag.report.diagnosis_text import seconds

SHOWN_CAUSES = 4
SMALLEST_SHOWN_SHARE = 5e-4


def render(demo: DemoDocument) -> RenderableType:
    """Return the verdict table, the causes, and what to run next."""
    parts: list[RenderableType] = [_verdict(demo)]
    causes = [cause for cause in demo.diagnosis.causes if abs(cause.excess_mean_s) >= 1e-4][:SHOWN_CAUSES]
    if causes:
        table = _table("cause", "adds to mean TTFT (90 % interval)", "share of variance")
        for cause in causes:
            low_s, high_s = cause.excess_mean_low_s, cause.excess_mean_high_s
            table.add_row(
                cause.id,
                f"{seconds(cause.excess_mean_s)} ({seconds(low_s)} to {seconds(high_s)})",
                f"{cause.share_of_variance:.0%} ({cause.share_low:.0%} to {cause.share_high:.0%})",
            )
        parts += [Text(""), table]
    if demo.diagnosis.stages:
        table = _table("stage", "before", "after", "share of Var(TTFT)")
        for stage in demo.diagnosis.stages:
            if stage.stage == "unaccounted" and abs(stage.share_of_variance) < SMALLEST_SHOWN_SHARE:
                continue
            before_s = stage.mean_baseline_s
            table.add_row(
                stage.stage,
                "" if before_s is None else f"{before_s * 1e3:.1f} ms",
                f"{stage.mean_incident_s * 1e3:.1f} ms",
                f"{stage.share_of_variance:.1%} ({stage.share_low:.0%} to {stage.share_high:.0%})",
            )
        table.add_row("sum", "", "", f"{sum(stage.share_of_variance for stage in demo.diagnosis.stages):.1%}")
        parts += [Text(""), table]
    parts += [Text(""), _further(demo)]
    return Group(*parts)


def _verdict(demo: DemoDocument) -> Table:
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    before, after, verdict = demo.diagnosis.baseline, demo.diagnosis.incident, demo.verdict
    table.add_row("injected", f"{demo.fault_injected}: {demo.fault_description}")
    found = {"cause": verdict.cause or "", "no_change": "no change", "abstain": "no cause can be named"}[verdict.status]
    table.add_row("found", f"{found} (confidence {verdict.confidence:.2f})")
    right = "nothing injected, nothing named" if demo.expected_cause is None else "as injected"
    outcome = (right, "bold green") if demo.matched else ("not what was injected", "bold red")
    table.add_row("verdict", Text(*outcome))
    if before is not None and after is not None:
        change = f" ({after.mean_s / before.mean_s - 1:+.0%})" if before.mean_s > 0 else ""
        ttft = f"mean {before.mean_s * 1e3:.1f} → {after.mean_s * 1e3:.1f} ms{change}, "
        table.add_row("TTFT", f"{ttft}p99 {before.p99_s * 1e3:.0f} → {after.p99_s * 1e3:.0f} ms")
        spread = f"{before.variance_s2**0.5 * 1e3:.1f} → {after.variance_s2**0.5 * 1e3:.1f} ms"
        table.add_row("", f"standard deviation {spread}")
        table.add_row("requests", f"{before.requests} before, {after.requests} after ({demo.diagnosis.data.split})")
    elif after is not None:
        table.add_row("TTFT", f"mean {after.mean_s * 1e3:.1f} ms, p99 {after.p99_s * 1e3:.0f} ms throughout")
        table.add_row("requests", f"{after.requests} ({demo.diagnosis.data.split})")
    table.add_row("why", verdict.reason)
    return table


def _further(demo: DemoDocument) -> Text:
    text = Text()
    text.append("Metrics were served on ", "bold").append(f"http://{demo.metrics_address}/metrics, among them:\n")
    for line in demo.metrics_sample:
        text.append(f"  {line}\n", "dim")
    text.append("The recording is in ", "bold").append(f"{demo.bundle}\n")
    text.append("Look further:\n", "bold")
    started = Path(sys.argv[0])
    program = str(started) if started.name == "kvdiag" and not shutil.which("kvdiag") else "kvdiag"
    text.append(f"  {program} diagnose {demo.bundle} --explain\n")
    text.append(f"  {program} demo --fault {'none' if demo.fault_injected != 'none' else 'link'} --seed {demo.seed}   ")
    text.append("the same requests with another fault")
    for note in demo.notes:
        text.append(f"\nNote: {note}", "yellow")
    return text


def _table(*headings: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for index, heading in enumerate(headings):
        table.add_column(heading, justify="left" if index == 0 else "right", no_wrap=True)
    return table
