"""`kvdiag exporter`: the sidecar that serves Prometheus metrics and records trace bundles."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvdiag.cli._output import Format, FormatOption, require

if TYPE_CHECKING:
    from kvdiag_exporters.config import Config
    from kvdiag_exporters.scraper import Collection


def register(app: typer.Typer) -> None:
    app.command()(exporter)


def exporter(
    config: Annotated[
        Path | None,
        typer.Option("--config", "-c", metavar="FILE", help="TOML file: engines to watch, where to listen and record."),
    ] = None,
    listen: Annotated[
        str | None,
        typer.Option("--listen", metavar="ADDR:PORT", help="Where to serve; 127.0.0.1:9846 by default, port 0: any."),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Collect once, print the metrics, and end.")] = False,
    print_config: Annotated[
        bool, typer.Option("--print-config", help="Print the configuration as it is understood, and end.")
    ] = False,
    format_: FormatOption = Format.TEXT,
) -> int:
    """Serve this host's and its engines' transfer metrics to Prometheus, until SIGTERM or Ctrl-C.

    Without a configuration the node's own collectors run: RDMA ports and objects, network interfaces. With
    `--format json` one collection is printed as a document, and the command ends.

    Example: kvdiag exporter --config exporter.toml --listen 0.0.0.0:9846
    """
    require("prometheus_client", "exporter", "kvdiag exporter")
    import sys

    import msgspec

    from kvdiag_exporters import app
    from kvdiag_exporters.config import Config, load, split_listen

    if listen is not None:
        split_listen(listen)

    def settings_now() -> Config:
        found = Config() if config is None else load(config)
        return found if listen is None else msgspec.structs.replace(found, listen=listen)

    settings = settings_now()
    if print_config:
        return _print_config(settings, format_)
    if once or format_ is Format.JSON:
        return _print_once(app.collect_once(settings), format_)
    app.run(
        settings,
        lambda line: print(f"kvdiag exporter: {line}", file=sys.stderr, flush=True),  # noqa: T201
        file=config,
        listen_from=None if listen is None else "--listen",
        reload=None if config is None else settings_now,
    )
    return 0


def _print_config(settings: "Config", format_: Format) -> int:
    import sys

    from kvdiag_exporters.config_text import as_json, as_toml

    sys.stdout.write(as_json(settings) if format_ is Format.JSON else as_toml(settings))
    return 0


def _print_once(collection: "Collection", format_: Format) -> int:
    import sys
    import time

    from kvdiag.model.exit_code import ExitCode
    from kvdiag.report.json import encode
    from kvdiag_exporters.document import build_document
    from kvdiag_exporters.exposition import all_samples, exposed

    if format_ is Format.JSON:
        sys.stdout.write(encode(build_document(collection)) + "\n")
    else:
        sys.stdout.write(exposed(all_samples(collection, time.monotonic())))
    failed = any(outcome.error for outcome in collection.outcomes.values())
    return ExitCode.WARNING if failed else ExitCode.PASSED
