"""`kvdiag report`: bundles, diagnoses, probes and preflights as one HTML file that stands alone."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvdiag.cli._flags import Seed
from kvdiag.cli._output import Format, FormatOption, require, stdout

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvdiag.model.report import ReportItem

MOST_INPUTS = 30


def register(app: typer.Typer) -> None:
    app.command()(report)


def report(
    inputs: Annotated[
        list[Path],
        typer.Argument(
            metavar="INPUT",
            help="Trace bundles (folders), and files with --format json output of preflight, probe, diagnose, demo.",
            show_default=False,
        ),
    ],
    output: Annotated[
        Path,
        typer.Option("--output", "-o", metavar="FILE", help="The HTML file; an earlier report there is replaced."),
    ],
    force: Annotated[
        bool, typer.Option("--force", help="Replace FILE even if it is no report that kvdiag wrote.")
    ] = False,
    incident_start: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", help="Of the one bundle: when the trouble began, on the bundle's clock."),
    ] = None,
    incident_end: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Of the one bundle: when it was over, if it was.")
    ] = None,
    seed: Seed = 0,
    format_: FormatOption = Format.TEXT,
) -> int:
    """Write one self-contained HTML file: verdict first, then stages, causes, pairs, distributions and timelines.

    Bundles are diagnosed as kvdiag diagnose does. The file needs no network, prints, and follows the reader's light
    or dark setting. Exit codes: 0 it was written, whatever it says; 3 an input holds nothing to show; 64 an input or
    a flag is wrong, or FILE cannot be written: then an earlier FILE is as it was.

    Example: kvdiag report /var/lib/kvdiag/bundle preflight.json probe.json -o report.html
    """
    for module in ("altair", "jinja2", "vl_convert", "numpy"):
        require(module, "report", "kvdiag report")
    from kvdiag.cli._files import write_whole
    from kvdiag.model.exit_code import ExitCode
    from kvdiag.model.report import ReportDocument
    from kvdiag.report.html import render
    from kvdiag.report.html.units import size
    from kvdiag.report.json import encode, head

    _check(inputs, output, force=force)
    items = _read(inputs, incident_start, incident_end, seed)
    about = head("kvdiag.report/1")
    rendered = render(items, version=about["version"], host=about["host"], time=about["time"])
    write_whole(output, rendered.html, "-o")
    written = len(rendered.html.encode())
    if format_ is Format.JSON:
        document = ReportDocument(**about, output=str(output), bytes=written, inputs=rendered.summaries)  # type: ignore[arg-type]
        typer.echo(encode(document))
    else:
        for one in rendered.summaries:
            stdout().print(f"{one.state}: {one.input.path}: {one.found}", markup=False)
        stdout().print(f"wrote {output} ({size(written)})", markup=False)
    return ExitCode.PASSED


def _check(inputs: "Sequence[Path]", output: Path, *, force: bool) -> None:
    """Refuse what cannot end well before the long work: UsageError for the flags, before anything is read."""
    from kvdiag.cli._files import check_new
    from kvdiag.errors import UsageError

    if len(inputs) > MOST_INPUTS:
        raise UsageError(f"INPUT: {len(inputs)} inputs; one report holds at most {MOST_INPUTS}: make several")
    mark = b"" if force else b'<meta name="generator" content="kvdiag '
    check_new(output, "-o", inputs, marks=(mark,), otherwise=", or give --force")


def _read(
    inputs: "Sequence[Path]", incident_start: float | None, incident_end: float | None, seed: int
) -> "list[ReportItem]":
    """Return everything to show; a bundle is diagnosed here."""
    from kvdiag.attribution import diagnose
    from kvdiag.derive.overview import overview
    from kvdiag.errors import UsageError
    from kvdiag.model.report import DiagnosedBundle, ReportItem
    from kvdiag.sources.bundle import read_bundle
    from kvdiag.sources.report_inputs import folder_input, read_items

    folders = [one for one in inputs if one.is_dir()]
    if (incident_start is not None or incident_end is not None) and len(folders) != 1:
        raise UsageError(
            f"--incident-start and --incident-end are for one bundle; {len(folders)} of the inputs are folders"
        )
    items: list[ReportItem] = []
    for path in inputs:
        if path not in folders:
            items += read_items(path)
            continue
        bundle = read_bundle(path)
        diagnosis = diagnose(bundle, incident_start, seed, incident_end_s=incident_end)
        content = DiagnosedBundle(diagnosis=diagnosis, overview=overview(bundle, diagnosis))
        items.append(ReportItem(input=folder_input(path, bundle), content=content))
    return items
