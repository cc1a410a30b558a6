"""Flags that several probes share, with one meaning everywhere."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from kvdiag.cli._flags import GidIndex as GidIndex
from kvdiag.cli._flags import Port as Port
from kvdiag.cli._flags import TlsKey as TlsKey


class Operation(StrEnum):
    WRITE = "write"
    READ = "read"
    WRITE_IMM = "write-imm"


class Transport(StrEnum):
    RDMA = "rdma"
    TCP = "tcp"


class Memory(StrEnum):
    AUTO = "auto"
    HOST = "host"
    THP = "thp"
    HUGE = "huge"
    CUDA = "cuda"
    CUDA_DMABUF = "cuda-dmabuf"
    CUDA_PEERMEM = "cuda-peermem"
    ROCM = "rocm"
    ROCM_DMABUF = "rocm-dmabuf"
    ROCM_PEERMEM = "rocm-peermem"


class Injection(StrEnum):
    WRONG_RKEY = "wrong-rkey"
    OUT_OF_RANGE = "out-of-range"
    NO_PERMISSION = "no-permission"
    WRONG_LKEY = "wrong-lkey"
    LOCAL_OUT_OF_RANGE = "local-out-of-range"
    NO_RECEIVE = "no-receive"
    MTU_MISMATCH = "mtu-mismatch"
    BAD_GID = "bad-gid"
    CORRUPT = "corrupt"


Peer = Annotated[str, typer.Argument(metavar="PEER", help="HOST:PORT of a `kvdiag agent`.")]
OperationOption = Annotated[
    Operation,
    typer.Option("--op", help="write pushes to the peer, read pulls from it; write-imm also consumes receives."),
]
TransportOption = Annotated[Transport, typer.Option("--transport", help="rdma, or tcp for comparison.")]
Size = Annotated[str, typer.Option("--size", help="Message sizes, for example 4096,64KiB,1MiB.")]
Iterations = Annotated[int | None, typer.Option("--iterations", min=1, max=100_000_000, help="Messages of each size.")]
Duration = Annotated[
    float | None,
    typer.Option(
        "--duration", min=0.01, max=3600, help="Seconds of transfer of each size instead; verifying adds to it."
    ),
]
QueueDepth = Annotated[int, typer.Option("--queue-depth", min=1, max=8192, help="Messages outstanding at a time.")]
Warmup = Annotated[int, typer.Option("--warmup", min=0, max=1_000_000, help="Messages before the clock starts.")]
TraceFile = Annotated[
    Path | None, typer.Option("--trace", help="Write a timeline (Perfetto, chrome://tracing) to this file.")
]
Rounds = Annotated[int, typer.Option("--rounds", min=1, max=1000, help="Repetitions; intervals need at least 5.")]
RoundsOfTransfer = Annotated[
    int | None,
    typer.Option("--rounds", min=1, max=1000, help="Repetitions; default: 1, or 5 with --min-bandwidth or --baseline."),
]
Device = Annotated[
    str | None, typer.Option("--device", help="RDMA device, or several as rails: a,b; default: chosen by its GID.")
]
TokenFile = Annotated[Path | None, typer.Option("--token-file", help="The agent's token; default: KVDIAG_TOKEN.")]
TlsCert = Annotated[Path | None, typer.Option("--tls-cert", help="Client certificate (PEM), for mutual TLS.")]
TlsCa = Annotated[Path | None, typer.Option("--tls-ca", help="Authority of the agent's certificate (PEM): use TLS.")]
Timeout = Annotated[float, typer.Option("--timeout", min=0.1, max=600, help="Longest wait for the peer, in seconds.")]
MaxP99 = Annotated[
    float | None, typer.Option("--max-p99-us", min=0, help="Fail (exit 2) where a size's p99 latency is longer, in µs.")
]
MinBandwidth = Annotated[
    str | None,
    typer.Option(
        "--min-bandwidth", help="Fail (exit 2) below this: 0.9xlink (of the port's rate), 90Gb/s or 11.2GB/s."
    ),
]
Budget = Annotated[
    str | None, typer.Option("--budget", help="Average load beside serving traffic at most, for example 100MB/s.")
]
History = Annotated[Path | None, typer.Option("--out", help="Append the document to this file, one JSON line per run.")]
Baseline = Annotated[
    Path | None,
    typer.Option("--baseline", help="Judge against earlier runs in this file (of --out); exit 3 with fewer than 5."),
]
TOLERANCE = 0.1
Tolerance = Annotated[
    float, typer.Option("--tolerance", min=0, max=10, help="With --baseline: relative change that is no news.")
]
QueuePairs = Annotated[
    int, typer.Option("--qps", min=1, max=1024, help="Queue pairs on each device; messages are dealt out to them.")
]
Bidirectional = Annotated[
    bool, typer.Option("--bidirectional", help="The peer transfers too, at the same time; rates are of both together.")
]
PingPong = Annotated[
    bool, typer.Option("--ping-pong", help="The peer answers each WRITE with one: times are half of each round trip.")
]
Inline = Annotated[
    int, typer.Option("--inline", min=0, max=4096, help="Carry messages up to this size inside the work request.")
]
Batch = Annotated[
    int | None, typer.Option("--batch", min=1, max=4096, help="Messages that share one post; default: by size.")
]
SignalEvery = Annotated[
    int | None, typer.Option("--signal-every", min=1, max=8192, help="Complete and time every N-th; default: --batch.")
]
MemoryOption = Annotated[
    Memory, typer.Option("--memory", help="Local memory: 4 KiB, transparent or explicit huge pages, or a GPU's.")
]
PeerMemory = Annotated[
    Memory | None, typer.Option("--peer-memory", help="The peer's memory; default: the same as --memory.")
]
RelaxedOrdering = Annotated[
    bool, typer.Option("--relaxed-ordering", help="Register memory for relaxed PCIe ordering at both ends.")
]
CheckOrdering = Annotated[
    int, typer.Option("--check-ordering", min=0, max=100_000, help="First test so many flags written after payloads.")
]
SamplesFile = Annotated[
    Path | None, typer.Option("--samples", help="Write every timed message to this file (CSV: size_bytes, seconds).")
]
Inject = Annotated[Injection | None, typer.Option("--inject", hidden=True, help="Provoke a failure, for tests.")]
