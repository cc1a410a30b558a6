"""`kvdiag probe latency`: one message at a time to an agent."""

import typer

from kvdiag.cli._output import Format, FormatOption
from kvdiag.cli.probe import _options as flags
from kvdiag.cli.probe._trace import traced
from kvdiag.cli.probe._transfer import run_transfer


def register(app: typer.Typer) -> None:
    app.command()(latency)


def latency(
    peer: flags.Peer,
    op: flags.OperationOption = flags.Operation.WRITE,
    transport: flags.TransportOption = flags.Transport.RDMA,
    size: flags.Size = "64,4KiB,64KiB",
    iterations: flags.Iterations = None,
    duration: flags.Duration = None,
    warmup: flags.Warmup = 32,
    ping_pong: flags.PingPong = False,
    inline: flags.Inline = 0,
    memory: flags.MemoryOption = flags.Memory.HOST,
    peer_memory: flags.PeerMemory = None,
    relaxed_ordering: flags.RelaxedOrdering = False,
    check_ordering: flags.CheckOrdering = 0,
    samples: flags.SamplesFile = None,
    device: flags.Device = None,
    port: flags.Port = None,
    gid_index: flags.GidIndex = None,
    token_file: flags.TokenFile = None,
    tls_cert: flags.TlsCert = None,
    tls_key: flags.TlsKey = None,
    tls_ca: flags.TlsCa = None,
    timeout: flags.Timeout = 10.0,
    max_p99_us: flags.MaxP99 = None,
    rounds: flags.RoundsOfTransfer = None,
    min_bandwidth: flags.MinBandwidth = None,
    budget: flags.Budget = None,
    out: flags.History = None,
    trace: flags.TraceFile = None,
    baseline: flags.Baseline = None,
    tolerance: flags.Tolerance = flags.TOLERANCE,
    output: FormatOption = Format.TEXT,
    inject: flags.Inject = None,
) -> int:
    """Measure one message at a time, from post to completion; every payload is verified.

    Example: kvdiag probe latency 10.0.0.2:18580 --size 64,64KiB --iterations 2000 --max-p99-us 50
    """
    given = locals()
    return traced("latency", trace, lambda: run_transfer("latency", queue_depth=1, **given))
