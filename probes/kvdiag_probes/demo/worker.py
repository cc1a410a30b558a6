"""What both workers share: start, take commands, end with a reason in one line, and never outlive the orchestrator."""

import contextlib
import os
import select
import sys
from collections.abc import Callable
from pathlib import Path

from kvdiag.errors import KvdiagError
from kvdiag_probes.demo import nixl_import
from kvdiag_probes.demo.channel import Channel, Closed, Configure, Failed, Started
from kvdiag_probes.demo.settings import Settings

PATIENCE_S = 90.0
"""An emulated machine takes that long to start and to connect; the orchestrator's own limits are shorter."""

Serve = Callable[[Settings, Channel, Channel, Configure], None]


def command_line(role: str, settings_file: Path, orchestrator: Channel, peer: Channel) -> list[str]:
    """Return the program of a worker; the channels' descriptors are to be inherited."""
    descriptors = [str(orchestrator.fileno()), str(peer.fileno())]
    return [sys.executable, "-m", f"kvdiag_probes.demo.{role}", str(settings_file), *descriptors]


def run(serve: Serve, node: str, arguments: list[str]) -> None:
    """Start a worker, and end the process; the exit status is 0 only when `serve` returned."""
    settings = Settings.read(Path(arguments[0]))
    orchestrator, peer = Channel.inherited(int(arguments[1])), Channel.inherited(int(arguments[2]))
    status = 1
    try:
        orchestrator.send(Started())
        configure = orchestrator.receive(PATIENCE_S)
        if not isinstance(configure, Configure):
            raise TypeError(f"expected Configure, got {configure}")
        if settings.transport == "nixl":
            telemetry = Path(settings.telemetry) / node
            telemetry.mkdir(parents=True, exist_ok=True)
            nixl_import.set_environment(settings.tls, configure.device, telemetry, settings.telemetry_port)
        serve(settings, orchestrator, peer, configure)
        status = 0
    except Closed:
        sys.stderr.write("the other end went away\n")
    except Exception as error:
        _report(orchestrator, error)
        if not isinstance(error, KvdiagError):
            sys.excepthook(type(error), error, error.__traceback__)
    sys.stderr.flush()
    # Transport libraries may crash in their own exit handlers; everything is written, the kernel frees the rest.
    os._exit(status)


def stay(orchestrator: Channel) -> None:
    """Wait for the orchestrator to close its end: what is observed of this process ends with it."""
    with contextlib.suppress(Closed):
        while True:
            select.select([orchestrator], [], [])
            for _ in orchestrator.poll():
                pass


def _report(orchestrator: Channel, error: Exception) -> None:
    text = " ".join(str(error).split()) or type(error).__name__
    try:
        orchestrator.send(Failed(text if isinstance(error, KvdiagError) else f"{type(error).__name__}: {text}"))
    except Closed:
        sys.stderr.write(f"{text}\n")
