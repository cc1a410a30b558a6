"""`kvdiag probe bandwidth`: a stream of one-sided messages to an agent."""

import typer

from kvdiag.cli._output import Format, FormatOption
from kvdiag.cli.probe import _options as flags
from kvdiag.cli.probe._trace import traced
from kvdiag.cli.probe._transfer import run_transfer


def register(app: typer.Typer) -> None:
    app.command()(bandwidth)


def bandwidth(
    peer: flags.Peer,
    op: flags.OperationOption = flags.Operation.WRITE,
    transport: flags.TransportOption = flags.Transport.RDMA,
    size: flags.Size = "64KiB,1MiB",
    queue_depth: flags.QueueDepth = 16,
    iterations: flags.Iterations = None,
    duration: flags.Duration = None,
    warmup: flags.Warmup = 32,
    queue_pairs: flags.QueuePairs = 1,
    bidirectional: flags.Bidirectional = False,
    batch: flags.Batch = None,
    signal_every: flags.SignalEvery = None,
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
    """Measure how fast a stream of messages goes, and prove what carried it; every payload is verified.

    Example: kvdiag probe bandwidth 10.0.0.2:18580 --op read --token-file token --min-bandwidth 90Gb/s
    """
    given = locals()
    return traced("bandwidth", trace, lambda: run_transfer("bandwidth", **given))
