"""`kvdiag agent`: the far end of a probe."""

from pathlib import Path
from typing import Annotated

import typer

from kvdiag.cli._flags import GidIndex, Port, TlsKey
from kvdiag.cli._output import Format, FormatOption, require


def register(app: typer.Typer) -> None:
    app.command()(agent)


def agent(
    listen: Annotated[str, typer.Option(metavar="ADDR:PORT", help="Where probes connect to.")] = "127.0.0.1:18580",
    token_file: Annotated[
        Path | None, typer.Option(help="File holding the token that probes must present; default: KVDIAG_TOKEN.")
    ] = None,
    tls_cert: Annotated[Path | None, typer.Option(help="This agent's certificate chain (PEM).")] = None,
    tls_key: TlsKey = None,
    tls_ca: Annotated[
        Path | None, typer.Option(help="Demand a client certificate signed by this authority (PEM): mutual TLS.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="RDMA device to serve on; default: chosen by its GID.")] = None,
    port: Port = None,
    gid_index: GidIndex = None,
    max_sessions: Annotated[int, typer.Option(min=1, max=64, help="Probes served at a time.")] = 8,
    max_buffer: Annotated[str, typer.Option(help="Memory exposed to all probes together.")] = "1GiB",
    idle: Annotated[float, typer.Option(min=1, max=3600, help="Seconds after which an idle session is freed.")] = 60.0,
    output: FormatOption = Format.TEXT,
) -> None:
    """Serve as the far end of `kvdiag probe`: exposes memory of its own to authenticated probes, until interrupted.

    Without a credential it listens on loopback only. It also answers `kvdiag preflight --peer` with a snapshot.

    Example: kvdiag agent --listen 10.0.0.2:18580 --token-file /etc/kvdiag/token
    """
    require("uvicorn", "probes", "kvdiag agent")
    require("starlette", "probes", "kvdiag agent")
    require("numpy", "probes", "kvdiag agent")
    import signal
    import sys

    from kvdiag.model.agent import AgentDocument
    from kvdiag.report.json import encode, head
    from kvdiag_probes.control.address import parse_address, resolve
    from kvdiag_probes.control.credential import check_listen, load_credential
    from kvdiag_probes.control.messages import PROTOCOL
    from kvdiag_probes.control.server import AgentServer
    from kvdiag_probes.control.sessions import Limits, Sessions
    from kvdiag_probes.control.targets import DeviceOptions, TargetFactory
    from kvdiag_probes.sizes import format_size, parse_size

    address = parse_address(listen, "--listen")
    credential = load_credential(token_file, tls_cert, tls_key, tls_ca)
    resolve(address, "--listen")
    check_listen(address.host, credential)
    limits = Limits(
        max_buffer_bytes=parse_size(max_buffer, "--max-buffer", most=1 << 40),
        max_sessions=max_sessions,
        session_idle_s=idle,
    )
    factory = TargetFactory(DeviceOptions(device=device, port=port, gid_index=gid_index), idle)
    factory.check()
    factory.preload()
    server = AgentServer(address, credential, Sessions(factory, limits))
    demanded = credential.demanded_of_clients
    if output is Format.JSON:
        document = AgentDocument(
            **head("kvdiag.agent/1"),  # type: ignore[arg-type]
            listen=str(server.address),
            protocol=PROTOCOL,
            authentication=demanded,
            max_sessions=max_sessions,
            max_buffer_bytes=limits.max_buffer_bytes,
            session_idle_s=idle,
        )
        sys.stdout.write(encode(document) + "\n")
    else:
        sys.stdout.write(
            f"kvdiag agent listens on {server.address} (authentication: {demanded}; at most {max_sessions} probes and "
            f"{format_size(limits.max_buffer_bytes)} together)\n"
        )
    sys.stdout.flush()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:  # nohup's wish
            signal.signal(number, lambda *_: server.stop())
    server.serve()
