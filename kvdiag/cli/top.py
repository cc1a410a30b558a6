"""`kvdiag top`: what kvdiag's exporters see, live in the terminal."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvdiag.cli._flags import TlsKey
from kvdiag.cli._output import Format, FormatOption, require

if TYPE_CHECKING:
    from kvdiag.model.top import TopDocument
    from kvdiag.top.poll import Poller
    from kvdiag.top.state import State

_DEFAULT_URL = "http://127.0.0.1:9846"


class View(StrEnum):
    OVERVIEW = "overview"
    PAIRS = "pairs"
    ENGINES = "engines"
    NICS = "nics"
    REGISTRATION = "registration"
    QUEUE_PAIRS = "qps"
    FINDINGS = "findings"


def register(app: typer.Typer) -> None:
    app.command()(top)


def top(
    urls: Annotated[
        list[str] | None, typer.Argument(metavar="[URL]...", help=f"Exporters to read; default: {_DEFAULT_URL}.")
    ] = None,
    interval: Annotated[float, typer.Option("--interval", min=0.5, max=600, help="Seconds between readings.")] = 2.0,
    window: Annotated[
        float, typer.Option("--window", min=1, max=3600, help="Seconds that rates and quantiles are over.")
    ] = 30.0,
    view: Annotated[View, typer.Option("--view", help="What to show first.")] = View.OVERVIEW,
    filter_: Annotated[str, typer.Option("--filter", metavar="WORDS", help="Only rows with all these words.")] = "",
    once: Annotated[
        bool, typer.Option("--once", help="Read twice, an interval apart, print one frame, and end.")
    ] = False,
    user: Annotated[
        str | None, typer.Option("--user", help="Name for exporters that ask for one; its password: KVDIAG_PASSWORD.")
    ] = None,
    tls_ca: Annotated[
        Path | None,
        typer.Option("--tls-ca", help="Authority of the exporters' certificates (PEM); default: the system's."),
    ] = None,
    tls_cert: Annotated[Path | None, typer.Option("--tls-cert", help="Client certificate (PEM).")] = None,
    tls_key: TlsKey = None,
    format_: FormatOption = Format.TEXT,
) -> int:
    """Show pairs, engines, NICs, registration, queue pairs and findings of running exporters, live.

    Keys: 1 to 7 choose the view, s sorts, / filters, p pauses, h helps, q quits. With --once or `--format json`, and
    wherever standard output is no terminal, nothing is asked for. Findings make the exit code: 2 with a critical one.

    Example: kvdiag top http://node-1:9846 http://node-2:9846
    """
    require("prometheus_client", "exporter", "kvdiag top")
    import os

    from kvdiag.errors import UsageError
    from kvdiag.sources.base import SystemClock
    from kvdiag.sources.exposition import access, base_url
    from kvdiag.top.poll import Poller
    from kvdiag.top.state import VIEWS, State

    if tls_key is not None and tls_cert is None:
        raise UsageError("--tls-key: give --tls-cert as well, the certificate that it belongs to")
    password = os.environ.get("KVDIAG_PASSWORD", "")
    if user is not None and not password:
        raise UsageError("--user: its password is read from the environment variable KVDIAG_PASSWORD, which is not set")
    way = access(user, password, tls_ca, tls_cert, tls_key)
    asked = list(dict.fromkeys(base_url(one) for one in urls or [_DEFAULT_URL]))
    state = State(view=VIEWS[list(View).index(view)], filter=filter_)
    single = once or format_ is Format.JSON
    poller = Poller(asked, way, interval, max(window, interval), SystemClock(), most=2 if single else None)
    poller.start()
    try:
        if not single:
            return _watch(poller, interval, state)
        poller.join()
    finally:
        poller.stop()
    document = poller.document()
    _print(document, state, interval, format_)
    return _code(document)


def _watch(poller: "Poller", interval_s: float, state: "State") -> int:
    import sys

    from rich.console import Console

    console = Console(file=sys.stdout, highlight=False)
    if console.is_terminal and not console.is_dumb_terminal:
        from kvdiag.top.terminal import Screen

        ended = Screen(console, poller, interval_s, state).run()
        return ended or _code(poller.document())
    import time

    sys.stderr.write(f"kvdiag top: no terminal to draw on: a frame every {interval_s:g} s until Ctrl-C; --once: one\n")
    while True:
        time.sleep(interval_s)
        _print(poller.document(), state, interval_s, Format.TEXT)


def _print(document: "TopDocument", state: "State", interval_s: float, format_: Format) -> None:
    import sys

    from rich.console import Console

    from kvdiag.report.json import encode
    from kvdiag.top.view import draw

    if format_ is Format.JSON:
        sys.stdout.write(encode(document) + "\n")
        return
    console = Console(file=sys.stdout, highlight=False)
    for line in draw(document, state, width=console.width, height=None, interval_s=interval_s):
        console.print(line)
    if not console.is_terminal or console.is_dumb_terminal:
        console.print()
    sys.stdout.flush()


def _code(document: "TopDocument") -> int:
    """Return 69 where no exporter ever answered, else the gravest of its findings and of exporters that fail."""
    from kvdiag.errors import UnavailableError
    from kvdiag.model.exit_code import ExitCode

    if all(one.data_age_s is None for one in document.exporters):
        told = "; ".join(f"{one.url}: {'; '.join(one.trouble) or 'no answer yet'}" for one in document.exporters)
        raise UnavailableError(f"no exporter answers: {told}")
    grave = {one.severity for one in document.findings}
    if "critical" in grave:
        return int(ExitCode.CRITICAL)
    failed = any(one.state == "failed" for one in document.exporters)
    return int(ExitCode.WARNING if failed or "warning" in grave else ExitCode.PASSED)
