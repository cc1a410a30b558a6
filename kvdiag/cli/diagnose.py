"""`kvdiag diagnose`: why TTFT varies in a recorded trace bundle, between two of them, or in what Prometheus kept."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvdiag.cli._flags import Seed
from kvdiag.cli._output import Format, FormatOption, require, stdout

if TYPE_CHECKING:
    from kvdiag.model.bundle import Bundle


def register(app: typer.Typer) -> None:
    app.command()(diagnose)


def diagnose(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="PATH...",
            help="A trace bundle's folder; or files of the same requests: OTLP JSON of spans, AIPerf, GuideLLM, vllm "
            "bench serve, NIXL telemetry. A load generator's file may stand beside a bundle.",
        ),
    ] = None,
    compare: Annotated[
        tuple[Path, Path] | None,
        typer.Option(metavar="BEFORE AFTER", help="Two bundles instead of PATHs: what differs between them."),
    ] = None,
    prometheus: Annotated[
        str | None,
        typer.Option(
            metavar="URL", help="A Prometheus server instead of PATHs: histograms of engines, window by window."
        ),
    ] = None,
    start: Annotated[
        str | None, typer.Option(metavar="TIME", help="With --prometheus: seconds of the epoch, or ISO 8601.")
    ] = None,
    end: Annotated[str | None, typer.Option(metavar="TIME", help="With --prometheus: where the period ends.")] = None,
    incident_start: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", help="When the trouble began, on the bundle's clock; else announced or found."),
    ] = None,
    incident_end: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", help="When it was over, if it was; what follows is baseline again."),
    ] = None,
    explain: Annotated[bool, typer.Option("--explain", help="Show step by step how the verdict was reached.")] = False,
    trace: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Also write requests, counters and events as a timeline (Perfetto opens it)."
        ),
    ] = None,
    seed: Seed = 0,
    output: FormatOption = Format.TEXT,
) -> int:
    """Split TTFT variance over stages, name what changed it, or say that nothing did or that it cannot be told.

    Exit codes: 0 no change, 1 a cause that costs less than a tenth of TTFT, 2 one that costs more, 3 not enough
    evidence.

    Examples: kvdiag diagnose /var/lib/kvdiag/bundle --explain

    kvdiag diagnose traces.json artifacts/profile_export.jsonl
    """
    require("numpy", "analysis", "kvdiag diagnose")
    from dataclasses import fields

    from kvdiag.attribution import diagnose as attribute
    from kvdiag.cli._files import check_new, write_whole
    from kvdiag.derive.timeline import timeline
    from kvdiag.model.diagnosis import Diagnosis, DiagnosisDocument
    from kvdiag.model.exit_code import ExitCode
    from kvdiag.report.diagnosis_text import render
    from kvdiag.report.json import encode, head
    from kvdiag.report.trace import MARK
    from kvdiag.report.trace import encode as encode_trace

    inputs = [*(paths or ()), *(compare or ())]
    if trace is not None:
        check_new(trace, "--trace", inputs, marks=(MARK,))
    bundle = _read(paths or [], compare, prometheus, start, end)
    diagnosis = attribute(bundle, incident_start, seed, incident_end_s=incident_end)
    if output is Format.JSON:
        body = {field.name: getattr(diagnosis, field.name) for field in fields(Diagnosis)}
        typer.echo(encode(DiagnosisDocument(**head("kvdiag.diagnose/1"), origin=bundle.origin, **body)))  # type: ignore[arg-type]
    else:
        stdout().print(render(diagnosis, bundle.origin, explain=explain))
    if trace is not None:
        write_whole(trace, encode_trace(timeline(bundle)), "--trace")
    verdict = diagnosis.verdict
    if verdict.status == "no_change":
        return ExitCode.PASSED
    if verdict.status == "abstain":
        return ExitCode.UNDETERMINED
    return ExitCode.CRITICAL if verdict.severity == "critical" else ExitCode.WARNING


def _read(
    paths: list[Path], compare: tuple[Path, Path] | None, prometheus: str | None, start: str | None, end: str | None
) -> "Bundle":
    """Return what is to be diagnosed; exactly one of the three ways must be given."""
    from kvdiag.errors import UsageError
    from kvdiag.sources.bundle import read_bundle

    if sum((bool(paths), compare is not None, prometheus is not None)) != 1:
        raise UsageError(
            "give a trace bundle's folder or files of requests, or --compare BEFORE AFTER, or --prometheus URL: one of "
            "the three"
        )
    if prometheus is None and (start is not None or end is not None):
        raise UsageError("--start and --end belong to --prometheus; for a bundle give --incident-start")
    if paths:
        return _of_paths(paths)
    if compare is not None:
        from kvdiag.derive.compare import before_and_after

        return before_and_after(*(read_bundle(one) for one in compare))
    assert prometheus is not None
    if start is None or end is None:
        raise UsageError("--prometheus needs --start and --end (seconds of the epoch, or ISO 8601)")
    from kvdiag.derive.engine_series import engine_series, wanted_names
    from kvdiag.derive.windows import window_bundle
    from kvdiag.sources.prometheus import read_prometheus

    samples = read_prometheus(prometheus, wanted_names(), _time("--start", start), _time("--end", end))
    found = engine_series(samples)
    return window_bundle(prometheus, found.histograms, found.counters, found.metrics, found.notes)


def _of_paths(paths: list[Path]) -> "Bundle":
    """Return a bundle, perhaps with what its clients saw, or what files tell of the same requests."""
    from kvdiag.derive.request_join import joined, seen_by_clients
    from kvdiag.errors import UsageError
    from kvdiag.sources.bundle import read_bundle
    from kvdiag.sources.request_files import is_bundle, read_request_files

    bundles = [one for one in paths if is_bundle(one)]
    if len(bundles) > 1:
        raise UsageError(f"{bundles[0]} and {bundles[1]} are two trace bundles; compare them: --compare BEFORE AFTER")
    if len(paths) == 1 and (bundles or (paths[0].is_dir() and (paths[0] / "meta.json").exists())):
        return read_bundle(paths[0])
    files = [file for one in paths if one not in bundles for file in read_request_files(one)]
    return seen_by_clients(read_bundle(bundles[0]), files) if bundles else joined(files)


def _time(flag: str, text: str) -> float:
    """Return seconds of the epoch; a time of day without a zone is taken for local time."""
    from datetime import datetime

    from kvdiag.errors import UsageError

    try:
        return float(text)
    except ValueError:
        pass
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        raise UsageError(f"{flag} {text}: neither seconds of the epoch nor ISO 8601 (2026-11-29T20:15:00Z)") from None
