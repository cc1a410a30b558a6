"""`kvdiag probe cold`: the first transfer of a pair against the steady state."""

from typing import Annotated, Any

import typer

from kvdiag.cli._output import Format, FormatOption, require
from kvdiag.cli.probe import _options as flags
from kvdiag.cli.probe._trace import traced


def register(app: typer.Typer) -> None:
    app.command()(cold)


def cold(
    peer: flags.Peer,
    transport: flags.TransportOption = flags.Transport.RDMA,
    size: flags.Size = "1MiB",
    rounds: flags.Rounds = 9,
    steady: Annotated[int, typer.Option("--steady", min=1, max=10000, help="Transfers for the steady state.")] = 10,
    device: flags.Device = None,
    port: flags.Port = None,
    gid_index: flags.GidIndex = None,
    token_file: flags.TokenFile = None,
    tls_cert: flags.TlsCert = None,
    tls_key: flags.TlsKey = None,
    tls_ca: flags.TlsCa = None,
    timeout: flags.Timeout = 10.0,
    max_cold_ms: Annotated[
        float | None, typer.Option("--max-cold-ms", min=0, help="Fail (exit 2) where a fresh connection takes longer.")
    ] = None,
    min_bandwidth: flags.MinBandwidth = None,
    budget: flags.Budget = None,
    out: flags.History = None,
    trace: flags.TraceFile = None,
    baseline: flags.Baseline = None,
    tolerance: flags.Tolerance = flags.TOLERANCE,
    output: FormatOption = Format.TEXT,
) -> int:
    """Time each step of a pair's first transfer, on fresh connections, and compare it with a used connection.

    --min-bandwidth applies to the steady state, one transfer at a time.

    Example: kvdiag probe cold 10.0.0.2:18580 --size 1MiB --max-cold-ms 50 --token-file token
    """
    given = locals()
    return traced("cold", trace, lambda: _run(**given))


def _run(**given: Any) -> int:
    for module in ("numpy", "httpx"):
        require(module, "probes", "kvdiag probe cold")
    from kvdiag.cli.probe import _finish
    from kvdiag.derive.probe_verdicts import judge
    from kvdiag.errors import KvdiagError
    from kvdiag.model.probe_cold import ColdDocument, ColdSettings
    from kvdiag.report.json import head
    from kvdiag.report.probe_cold_text import render
    from kvdiag_probes.budget import Budget
    from kvdiag_probes.cold import ColdOptions, ColdResult, measure, steady_bandwidth, summarise
    from kvdiag_probes.control.address import parse_address
    from kvdiag_probes.control.credential import load_credential
    from kvdiag_probes.datapath import Transport
    from kvdiag_probes.sizes import parse_size

    tcp = given["transport"] is flags.Transport.TCP
    _finish.refuse_port(given)
    options = ColdOptions(
        peer=parse_address(given["peer"], "PEER"),
        credential=load_credential(given["token_file"], given["tls_cert"], given["tls_key"], given["tls_ca"]),
        transport=Transport.TCP if tcp else Transport.RDMA,
        size=parse_size(given["size"]),
        rounds=given["rounds"],
        steady=given["steady"],
        timeout_s=given["timeout"],
        device=given["device"],
        port=given["port"],
        gid_index=given["gid_index"],
        budget=Budget(_finish.parse_rate(given["budget"], "--budget") if given["budget"] else None),
        progress=_finish.progress(),
    )
    _finish.check(given)
    kept: list[ColdResult] = []
    failure = None
    try:
        result = measure(options, kept.append)
    except KvdiagError as error:
        if len(kept) < 2:  # the very first connection, and one more
            raise
        failure, result = error, kept[-1]
    stages, first_s, total, steady, slowdown = summarise(result)
    limit = given["max_cold_ms"]
    judgements = _finish.judge_rates(given, result.ends, [steady_bandwidth(options, result)])
    if limit is not None:
        judgements = (judge("--max-cold-ms", total, limit / 1e3), *judgements)
    document = ColdDocument(
        **head("kvdiag.probe-cold/1"),  # type: ignore[arg-type]
        settings=ColdSettings(
            transport="tcp" if tcp else "rdma",
            size_bytes=options.size,
            rounds=options.rounds,
            steady_iterations=options.steady,
        ),
        ends=result.ends,
        stages=stages,
        total_first_s=first_s,
        total=total,
        steady=steady,
        slowdown=slowdown,
        judgements=judgements,
        failure=str(failure) if failure else None,
        missing=("open, register and peer_register: TCP has none",) if tcp else (),
    )
    metrics = [*(stage.again for stage in stages), total, steady]
    return _finish.finish(document, render, given, metrics, failure=failure)
