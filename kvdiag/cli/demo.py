"""`kvdiag demo`: real transfers on this machine, a fault, a recording of both, and the verdict on it."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvdiag.cli._output import Format, FormatOption, require, stderr, stdout

if TYPE_CHECKING:
    from rich.console import Console

    from kvdiag.model.demo import DemoDocument
    from kvdiag_probes.demo.run import Outcome


_BUSY = 0.3
"""Said of runs that missed, from this share of the time on which processors were waited for."""


class Fault(StrEnum):
    REGISTRATION = "registration"
    LAYOUT = "layout"
    LINK = "link"
    LOSS = "loss"
    DELAY = "delay"
    PAUSE = "pause"
    OVERLOAD = "overload"
    NONE = "none"
    RANDOM = "random"


class Transport(StrEnum):
    AUTO = "auto"
    NIXL = "nixl"
    TCP = "tcp"


def register(app: typer.Typer) -> None:
    app.command()(demo)


def demo(
    fault: Annotated[Fault, typer.Option(help="What goes wrong half-way; random: one of those possible here.")] = (
        Fault.RANDOM
    ),
    duration: Annotated[
        float, typer.Option(min=20, max=3600, metavar="SECONDS", help="How long requests arrive.")
    ] = 60,
    rate: Annotated[float, typer.Option(min=1, max=20, metavar="PER_SECOND", help="Requests per second.")] = 8,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Of prompts and arrivals; drawn and printed if absent.")
    ] = None,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="DIR", help="Where the recording is kept.")] = Path(
        "kvdiag-demo"
    ),
    transport: Annotated[Transport, typer.Option(help="auto: NIXL where its wheel is installed, else TCP.")] = (
        Transport.AUTO
    ),
    keep_serving: Annotated[
        bool, typer.Option("--keep-serving", help="Keep both processes and the exporter up until Ctrl-C.")
    ] = False,
    format_: FormatOption = Format.TEXT,
) -> int:
    """Run prefill and decode on this machine, begin a fault half-way, and let diagnose find it in the recording.

    Two processes push KV blocks through real NIXL agents between two network namespaces (as root; else over the
    loopback interface), the exporter serves and records metrics, and everything but the recording is removed at the
    end. Exit codes: 0 the verdict names what was done, 2 it does not, 3 it could not run.

    Example: kvdiag demo --fault link
    """
    for module in ("numpy", "prometheus_client"):
        require(module, "exporter,analysis", "kvdiag demo")
    from kvdiag.model.exit_code import ExitCode
    from kvdiag.report.demo_text import render
    from kvdiag.report.json import encode
    from kvdiag_probes.demo import run

    plan = run.plan(
        transport=transport, fault=fault, seed=seed, rate=rate, duration_s=duration, output=output.absolute()
    )
    reporter = _Reporter(stderr())
    for note in plan.notes:
        reporter.say(f"note: {note}")
    try:
        with run.running(plan, reporter.say, reporter.advance, keep_serving=keep_serving) as outcome:
            reporter.close()
            document = _judge(outcome)
            if format_ is Format.JSON:
                typer.echo(encode(document))
            else:
                stdout().print(render(document))
            if keep_serving:
                _linger(outcome, reporter)
    finally:
        reporter.close()
    return ExitCode.PASSED if document.matched else ExitCode.CRITICAL


def _judge(outcome: "Outcome") -> "DemoDocument":
    from kvdiag.attribution import diagnose
    from kvdiag.derive.host_pressure import waited_share
    from kvdiag.model.demo import DemoDocument
    from kvdiag.report.json import head
    from kvdiag.sources.bundle import read_bundle
    from kvdiag_probes.demo.faults import CAUSES, DESCRIPTIONS, matches

    plan = outcome.plan
    bundle = read_bundle(plan.bundle)
    diagnosis = diagnose(bundle)
    verdict, expected = diagnosis.verdict, CAUSES[plan.fault]
    matched, waited, notes = matches(plan.fault, verdict), waited_share(bundle), plan.notes
    if not matched and waited is not None and waited > _BUSY:
        notes += (
            f"processes of this machine waited for a processor {waited:.0%} of the time, which may hide what was "
            "injected; run it again when the machine has less to do",
        )
    return DemoDocument(
        **head("kvdiag.demo/1"),  # type: ignore[arg-type]
        verdict=verdict,
        fault_injected=plan.fault,
        fault_description=DESCRIPTIONS[plan.fault],
        fault_offset_s=outcome.fault_offset_s,
        expected_cause=expected,
        matched=matched,
        transport=plan.transport,
        isolated=plan.isolated,
        seed=plan.seed,
        rate=plan.rate,
        duration_s=plan.duration_s,
        requests=outcome.requests,
        metrics_address=outcome.metrics_address,
        metrics_sample=outcome.metrics_sample,
        bundle=str(plan.bundle),
        notes=notes,
        diagnosis=diagnosis,
    )


def _linger(outcome: "Outcome", reporter: "_Reporter") -> None:
    import contextlib
    import signal

    reporter.say(f"still serving http://{outcome.metrics_address}/metrics; Ctrl-C ends it")
    with contextlib.suppress(KeyboardInterrupt):
        signal.pause()


class _Reporter:
    """Progress on standard error: a bar on a terminal, a line at every quarter elsewhere."""

    def __init__(self, console: "Console") -> None:
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        self._console = console
        self._quarters = 0
        self._bar = (
            Progress(TextColumn("serving"), BarColumn(), TimeRemainingColumn(), console=console, transient=True)
            if console.is_terminal
            else None
        )
        self._task = None if self._bar is None else self._bar.add_task("serving", total=1.0)

    def say(self, text: str) -> None:
        """Print one line."""
        self._console.print(text, markup=False)

    def advance(self, share: float, requests: int) -> None:
        """Show how much of the run is over (0-1) and how many requests were answered."""
        if self._bar is not None and self._task is not None:
            self._bar.start()
            self._bar.update(self._task, completed=share)
        elif int(share * 4) > self._quarters:
            self._quarters = int(share * 4)
            self.say(f"{share:.0%} of the run, {requests} requests answered")

    def close(self) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.stop()
