"""`kvdiag probe bandwidth|latency`: measure one-sided transfers to an agent."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from kvdiag.cli._output import Format, FormatOption, require, stderr, stdout

if TYPE_CHECKING:
    from kvdiag.model.probe import ProbeDocument, SizeResult, Threshold
    from kvdiag_probes.session import ProbeOptions


class _Operation(StrEnum):
    WRITE = "write"
    READ = "read"


class _Transport(StrEnum):
    RDMA = "rdma"
    TCP = "tcp"


class _Injection(StrEnum):
    WRONG_RKEY = "wrong-rkey"
    OUT_OF_RANGE = "out-of-range"
    CORRUPT = "corrupt"


_Peer = Annotated[str, typer.Argument(metavar="PEER", help="HOST:PORT of a `kvdiag agent`.")]
_Op = Annotated[_Operation, typer.Option("--op", help="write pushes to the peer, read pulls from it.")]
_TransportOption = Annotated[_Transport, typer.Option("--transport", help="rdma, or tcp for comparison.")]
_Size = Annotated[str, typer.Option("--size", help="Message sizes, for example 4096,64KiB,1MiB.")]
_Iterations = Annotated[int | None, typer.Option("--iterations", min=1, max=100_000_000, help="Messages of each size.")]
_Duration = Annotated[
    float | None, typer.Option("--duration", min=0.01, max=3600, help="Seconds of transfer of each size instead.")
]
_Warmup = Annotated[int, typer.Option("--warmup", min=0, max=1_000_000, help="Messages before the clock starts.")]
_Device = Annotated[str | None, typer.Option("--device", help="RDMA device; default: chosen by its GID.")]
_Port = Annotated[int | None, typer.Option("--port", min=1, max=255, help="Port of the device.")]
_GidIndex = Annotated[int | None, typer.Option("--gid-index", min=0, max=65535, help="GID table slot.")]
_TokenFile = Annotated[Path | None, typer.Option("--token-file", help="The agent's token; default: KVDIAG_TOKEN.")]
_TlsCert = Annotated[Path | None, typer.Option("--tls-cert", help="Client certificate (PEM), for mutual TLS.")]
_TlsKey = Annotated[Path | None, typer.Option("--tls-key", help="The certificate's private key (PEM).")]
_TlsCa = Annotated[Path | None, typer.Option("--tls-ca", help="Authority of the agent's certificate (PEM): use TLS.")]
_Timeout = Annotated[float, typer.Option("--timeout", min=0.1, max=600, help="Longest wait for the peer, in seconds.")]
_MinGbps = Annotated[
    float | None, typer.Option("--min-gbps", min=0, help="Fail (exit 2) where a size averages less, in 10^9 bit/s.")
]
_MaxP99 = Annotated[
    float | None, typer.Option("--max-p99-us", min=0, help="Fail (exit 2) where a size's p99 latency is longer, in µs.")
]
_Inject = Annotated[_Injection | None, typer.Option("--inject", hidden=True, help="Provoke a failure, for tests.")]

_probe = typer.Typer(no_args_is_help=True, help="Measure transfers to a `kvdiag agent` on another node.")


def register(app: typer.Typer) -> None:
    app.add_typer(_probe, name="probe")


@_probe.command()
def bandwidth(
    peer: _Peer,
    op: _Op = _Operation.WRITE,
    transport: _TransportOption = _Transport.RDMA,
    size: _Size = "64KiB,1MiB",
    queue_depth: Annotated[
        int, typer.Option("--queue-depth", min=1, max=8192, help="Messages outstanding at a time.")
    ] = 16,
    iterations: _Iterations = None,
    duration: _Duration = None,
    warmup: _Warmup = 32,
    device: _Device = None,
    port: _Port = None,
    gid_index: _GidIndex = None,
    token_file: _TokenFile = None,
    tls_cert: _TlsCert = None,
    tls_key: _TlsKey = None,
    tls_ca: _TlsCa = None,
    timeout: _Timeout = 10.0,
    min_gbps: _MinGbps = None,
    max_p99_us: _MaxP99 = None,
    output: FormatOption = Format.TEXT,
    inject: _Inject = None,
) -> int:
    """Measure how fast a stream of messages goes, and prove what carried it; every payload is verified.

    Example: kvdiag probe bandwidth 10.0.0.2:18580 --op read --size 64KiB,1MiB --token-file token --min-gbps 90
    """
    return _run("bandwidth", **locals())


@_probe.command()
def latency(
    peer: _Peer,
    op: _Op = _Operation.WRITE,
    transport: _TransportOption = _Transport.RDMA,
    size: _Size = "64,4KiB,64KiB",
    iterations: _Iterations = None,
    duration: _Duration = None,
    warmup: _Warmup = 32,
    device: _Device = None,
    port: _Port = None,
    gid_index: _GidIndex = None,
    token_file: _TokenFile = None,
    tls_cert: _TlsCert = None,
    tls_key: _TlsKey = None,
    tls_ca: _TlsCa = None,
    timeout: _Timeout = 10.0,
    min_gbps: _MinGbps = None,
    max_p99_us: _MaxP99 = None,
    output: FormatOption = Format.TEXT,
    inject: _Inject = None,
) -> int:
    """Measure one message at a time, from post to completion; every payload is verified.

    Example: kvdiag probe latency 10.0.0.2:18580 --size 64,64KiB --iterations 2000 --max-p99-us 50
    """
    return _run("latency", queue_depth=1, **locals())


def _run(kind: Literal["bandwidth", "latency"], **flags: Any) -> int:
    for module in ("numpy", "httpx"):
        require(module, "probes", f"kvdiag probe {kind}")
    from kvdiag.model.exit_code import ExitCode
    from kvdiag.model.probe import ProbeDocument
    from kvdiag.report.json import encode, head
    from kvdiag.report.probe_text import render
    from kvdiag_probes.session import run_probe

    options = _options(kind, flags)
    result = run_probe(options)
    document = ProbeDocument(
        **head("kvdiag.probe/1"),  # type: ignore[arg-type]
        settings=options.settings,
        ends=result.ends,
        durations=result.durations,
        results=result.results,
        proof=result.proof,
        thresholds=_thresholds(result.results, flags["min_gbps"], flags["max_p99_us"]),
    )
    if flags["output"] is Format.JSON:
        stdout().print(encode(document), markup=False, soft_wrap=True)
    else:
        stdout().print(render(document))
    return _exit_code(document, ExitCode)


def _options(kind: Literal["bandwidth", "latency"], flags: dict[str, Any]) -> "ProbeOptions":
    from kvdiag.errors import UsageError
    from kvdiag.model.probe import ProbeSettings
    from kvdiag_probes.control.address import parse_address
    from kvdiag_probes.control.credential import load_credential
    from kvdiag_probes.session import ProbeOptions
    from kvdiag_probes.sizes import parse_sizes

    if flags["iterations"] is not None and flags["duration"] is not None:
        raise UsageError("--iterations and --duration exclude each other: give one")
    iterations = flags["iterations"]
    if iterations is None and flags["duration"] is None:
        iterations = 1000
    console = stderr()
    show = console.is_terminal
    return ProbeOptions(
        peer=parse_address(flags["peer"], "PEER"),
        credential=load_credential(flags["token_file"], flags["tls_cert"], flags["tls_key"], flags["tls_ca"]),
        settings=ProbeSettings(
            kind=kind,
            operation=flags["op"].value,
            transport=flags["transport"].value,
            sizes=parse_sizes(flags["size"]),
            queue_depth=flags["queue_depth"],
            iterations=iterations,
            duration_s=flags["duration"],
            warmup=flags["warmup"],
        ),
        timeout_s=flags["timeout"],
        device=flags["device"],
        port=flags["port"],
        gid_index=flags["gid_index"],
        inject=flags["inject"].value if flags["inject"] else None,
        progress=(lambda line: console.print(line, end="\r")) if show else (lambda _: None),
    )


def _thresholds(
    results: "tuple[SizeResult, ...]", min_gbps: float | None, max_p99_us: float | None
) -> "tuple[Threshold, ...]":
    from kvdiag.model.probe import Threshold

    found = []
    for result in results:
        for name, unit, limit, value, sign in (
            ("--min-gbps", "Gb/s", min_gbps, result.bytes_per_second * 8 / 1e9, 1),
            ("--max-p99-us", "µs", max_p99_us, result.latency_s.p99 * 1e6, -1),
        ):
            if limit is not None:
                met = (value - limit) * sign >= 0
                found.append(
                    Threshold(name=name, size_bytes=result.size_bytes, unit=unit, limit=limit, value=value, met=met)
                )
    return tuple(found)


def _exit_code(document: "ProbeDocument", codes: Any) -> int:
    if not all(bound.met for bound in document.thresholds):
        return int(codes.CRITICAL)
    return int(codes.WARNING if document.proof.status == "contradicted" else codes.PASSED)
