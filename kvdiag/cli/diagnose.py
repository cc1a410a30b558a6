"""`kvdiag diagnose`: why TTFT varies in a recorded trace bundle."""

from pathlib import Path
from typing import Annotated

import typer

from kvdiag.cli._output import Format, FormatOption, require, stdout


def register(app: typer.Typer) -> None:
    app.command()(diagnose)


def diagnose(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="A trace bundle: the folder that holds requests.jsonl.")],
    incident_start: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", help="When the trouble began, on the bundle's clock; else announced or found."),
    ] = None,
    incident_end: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", help="When it was over, if it was; what follows is baseline again."),
    ] = None,
    explain: Annotated[bool, typer.Option("--explain", help="Show step by step how the verdict was reached.")] = False,
    seed: Annotated[int, typer.Option(min=0, help="Of the bootstrap; the same seed gives the same numbers.")] = 0,
    output: FormatOption = Format.TEXT,
) -> int:
    """Split TTFT variance over stages, name what changed it, or say that nothing did or that it cannot be told.

    Exit codes: 0 no change, 1 a cause that costs less than a tenth of TTFT, 2 one that costs more, 3 not enough
    evidence.

    Example: kvdiag diagnose /var/lib/kvdiag/bundle --explain
    """
    require("numpy", "analysis", "kvdiag diagnose")
    from dataclasses import fields

    from kvdiag.attribution import diagnose as attribute
    from kvdiag.model.diagnosis import Diagnosis, DiagnosisDocument
    from kvdiag.model.exit_code import ExitCode
    from kvdiag.report.diagnosis_text import render
    from kvdiag.report.json import encode, head
    from kvdiag.sources.bundle import read_bundle

    diagnosis = attribute(read_bundle(path), incident_start, seed, incident_end_s=incident_end)
    if output is Format.JSON:
        body = {field.name: getattr(diagnosis, field.name) for field in fields(Diagnosis)}
        typer.echo(encode(DiagnosisDocument(**head("kvdiag.diagnose/1"), origin=str(path), **body)))  # type: ignore[arg-type]
    else:
        stdout().print(render(diagnosis, str(path), explain=explain))
    verdict = diagnosis.verdict
    if verdict.status == "no_change":
        return ExitCode.PASSED
    if verdict.status == "abstain":
        return ExitCode.UNDETERMINED
    return ExitCode.CRITICAL if verdict.severity == "critical" else ExitCode.WARNING
