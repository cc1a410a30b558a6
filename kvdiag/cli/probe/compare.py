"""`kvdiag probe compare`: RDMA WRITE, READ and TCP over the same pair, by turns."""

from typing import Annotated, Any

import typer

from kvdiag.cli._output import Format, FormatOption, require
from kvdiag.cli.probe import _options as flags
from kvdiag.cli.probe._trace import traced


def register(app: typer.Typer) -> None:
    app.command()(compare)


def compare(
    peer: flags.Peer,
    methods: Annotated[
        str,
        typer.Option("--methods", help="Of rdma-write, rdma-read, tcp-write, tcp-read; the first is the measure."),
    ] = "rdma-write,rdma-read,tcp-write",
    size: flags.Size = "64KiB,1MiB",
    queue_depth: flags.QueueDepth = 16,
    iterations: flags.Iterations = 64,
    rounds: flags.Rounds = 7,
    device: flags.Device = None,
    port: flags.Port = None,
    gid_index: flags.GidIndex = None,
    token_file: flags.TokenFile = None,
    tls_cert: flags.TlsCert = None,
    tls_key: flags.TlsKey = None,
    tls_ca: flags.TlsCa = None,
    timeout: flags.Timeout = 10.0,
    min_bandwidth: flags.MinBandwidth = None,
    budget: flags.Budget = None,
    out: flags.History = None,
    trace: flags.TraceFile = None,
    baseline: flags.Baseline = None,
    tolerance: flags.Tolerance = flags.TOLERANCE,
    output: FormatOption = Format.TEXT,
) -> int:
    """Compare RDMA WRITE, READ and TCP between the same two nodes, by turns, and prove what carried each.

    --min-bandwidth applies to the reference method.

    Example: kvdiag probe compare 10.0.0.2:18580 --size 64KiB --rounds 9 --min-bandwidth 0.9xlink --token-file token
    """
    given = locals()
    return traced("compare", trace, lambda: _run(**given))


def _run(**given: Any) -> int:
    for module in ("numpy", "httpx"):
        require(module, "probes", "kvdiag probe compare")
    from kvdiag.cli.probe import _finish
    from kvdiag.errors import KvdiagError
    from kvdiag.model.probe_compare import CompareDocument, CompareSettings
    from kvdiag.report.json import head
    from kvdiag.report.probe_compare_text import render
    from kvdiag_probes import compare as probe
    from kvdiag_probes.budget import Budget

    methods = _finish.parse_names(given["methods"], "--methods", probe.METHODS)
    allowed = _finish.parse_rate(given["budget"], "--budget") if given["budget"] else None
    _finish.check(given)
    options = _finish.probe_options(given)
    runs: dict[str, list[Any]] = {method: [] for method in methods}
    failure = None
    try:
        probe.collect(options, methods, given["rounds"], Budget(allowed), runs)
    except KvdiagError as error:
        if not all(runs.values()):
            raise
        failure = error
    found = probe.summarise(options, methods, runs)
    settings = CompareSettings(
        methods=methods,
        sizes=options.settings.sizes,
        queue_depth=given["queue_depth"],
        iterations=given["iterations"],
        rounds=given["rounds"],
    )
    link = probe.link_bytes_per_second(found.ends)
    own = [row.bandwidth for row in found.results if row.method == methods[0]]
    metrics = [one for row in found.results for one in (row.bandwidth, row.latency_p50)]
    document = CompareDocument(
        **head("kvdiag.probe-compare/1"),  # type: ignore[arg-type]
        settings=settings,
        ends=found.ends,
        results=found.results,
        proofs=found.proofs,
        link_bytes_per_second=link,
        judgements=_finish.judge_rates(given, found.ends, own),
        failure=str(failure) if failure else None,
        missing=() if link else ("the link's rate: no RDMA port was used, or sysfs shows none",),
    )
    contradicted = any(one.proof.status == "contradicted" for one in found.proofs)
    return _finish.finish(document, render, given, metrics, contradicted, failure)
