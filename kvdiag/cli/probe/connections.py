"""`kvdiag probe connections`: what queue pairs cost, how many there can be, and how they share a link."""

from typing import Annotated, Any

import typer

from kvdiag.cli._output import Format, FormatOption, require
from kvdiag.cli.probe import _options as flags
from kvdiag.cli.probe._trace import traced


def register(app: typer.Typer) -> None:
    app.command()(connections)


def connections(
    peer: Annotated[
        str | None, typer.Argument(metavar="[PEER]", help="HOST:PORT of a `kvdiag agent`, for throughput.")
    ] = None,
    active: Annotated[str, typer.Option("--active", help="Queue pairs that share the load.")] = "1,4,16,64",
    size: flags.Size = "64KiB",
    in_flight: Annotated[int, typer.Option("--in-flight", min=1, max=8192, help="Messages of all queue pairs.")] = 64,
    iterations: flags.Iterations = 512,
    rounds: flags.Rounds = 5,
    threads: Annotated[str, typer.Option("--threads", help="Threads that make queue pairs at once.")] = "1,2,4",
    pairs: Annotated[int, typer.Option("--pairs", min=1, max=10_000, help="Queue pairs that each thread makes.")] = 32,
    most: Annotated[int, typer.Option("--most", min=1, max=1 << 20, help="Stop looking for the limit here.")] = 1024,
    prefill: Annotated[int, typer.Option("--prefill", min=1, max=100_000, help="Prefill instances, for advice.")] = 8,
    decode: Annotated[int, typer.Option("--decode", min=1, max=100_000, help="Decode instances, for advice.")] = 8,
    pairs_per_link: Annotated[int, typer.Option("--pairs-per-link", min=1, max=1024, help="NIXL and Mooncake: 2.")] = 2,
    device: flags.Device = None,
    port: flags.Port = None,
    gid_index: flags.GidIndex = None,
    token_file: flags.TokenFile = None,
    tls_cert: flags.TlsCert = None,
    tls_key: flags.TlsKey = None,
    tls_ca: flags.TlsCa = None,
    timeout: flags.Timeout = 10.0,
    budget: flags.Budget = None,
    out: flags.History = None,
    trace: flags.TraceFile = None,
    min_bandwidth: flags.MinBandwidth = None,
    baseline: flags.Baseline = None,
    tolerance: flags.Tolerance = flags.TOLERANCE,
    output: FormatOption = Format.TEXT,
) -> int:
    """Time queue pair set-up, find the limit, and with a PEER how bandwidth changes with the number of queue pairs.

    Exit 2 where --prefill × --decode does not fit, 3 where it needs more than --most tried.

    Example: kvdiag probe connections 10.0.0.2:18580 --active 1,16,256 --prefill 16 --decode 32 --token-file token
    """
    given = locals()
    return traced("connections", trace, lambda: _run(**given))


def _run(**given: Any) -> int:
    for module in ("numpy", "httpx"):
        require(module, "probes", "kvdiag probe connections")
    from kvdiag.cli.probe import _finish
    from kvdiag.errors import KvdiagError, StoppedError
    from kvdiag.model.probe_connections import ConnectionsDocument, ConnectionsSettings
    from kvdiag.report.json import head
    from kvdiag.report.probe_connections_text import render
    from kvdiag_probes import connections as probe
    from kvdiag_probes.budget import Budget
    from kvdiag_probes.connections_probe import Local, measure_local
    from kvdiag_probes.gid import choose
    from kvdiag_probes.rdma_path import read_devices
    from kvdiag_probes.sizes import parse_size

    wanted = _finish.parse_counts(given["active"], "--active", most=1024)
    threads = _finish.parse_counts(given["threads"], "--threads", most=256)
    _finish.check(given)
    # Every queue pair of the largest number carries a message.
    given["iterations"] = max(given["iterations"], *wanted)
    allowed = Budget(_finish.parse_rate(given["budget"], "--budget") if given["budget"] else None)
    choice = choose(read_devices(), device=given["device"], port=given["port"], gid_index=given["gid_index"])
    settings = ConnectionsSettings(
        device=choice.device,
        rounds=given["rounds"],
        threads=threads,
        pairs_per_thread=given["pairs"],
        most_pairs=given["most"],
        active=wanted if given["peer"] else (),
        size_bytes=parse_size(given["size"]),
        iterations=given["iterations"],
        prefill=given["prefill"],
        decode=given["decode"],
        pairs_per_link=given["pairs_per_link"],
    )
    active: tuple[Any, ...] = ()
    ends = None
    failure: KvdiagError | None = None
    kept: list[Local] = []
    try:
        found = measure_local(choice, settings, _finish.progress(), keep=kept.append)
    except StoppedError as error:
        if not kept:
            raise
        (found,), failure = kept, error
    if failure:
        found.missing.append(f"what was to follow: {failure}")
    elif given["peer"]:
        options = _finish.probe_options(given | {"queue_depth": given["in_flight"]})
        try:
            moved = probe.time_active(options, wanted, given["in_flight"], given["rounds"], allowed)
        except KvdiagError as error:
            failure = error
            found.missing.append(f"bandwidth against the number of queue pairs: {error}")
        else:
            active, ends = moved.rows, moved.ends
            failure = next(iter(moved.failures.values()), None)
            found.missing += [f"{count} active queue pairs: {error}" for count, error in moved.failures.items()]
    else:
        found.missing.append("bandwidth against the number of queue pairs: give a PEER")
    fan_out = probe.advise(
        found.setup, found.exhaustion, active, found.sharing, given["prefill"], given["decode"], given["pairs_per_link"]
    )
    document = ConnectionsDocument(
        **head("kvdiag.probe-connections/1"),  # type: ignore[arg-type]
        settings=settings,
        ends=ends,
        setup=found.setup,
        creation=tuple(found.creation),
        sharing=found.sharing,
        exhaustion=found.exhaustion,
        active=active,
        fan_out=fan_out,
        judgements=_finish.judge_rates(given, ends, [row.bandwidth for row in active]),
        failure=str(failure) if failure else None,
        missing=tuple(found.missing),
    )
    metrics = [row.seconds for row in found.setup] + [row.per_second for row in found.creation]
    metrics += [row.bandwidth for row in active]
    return exit_code(_finish.finish(document, render, given, metrics, failure=failure), fan_out.fits)


def exit_code(code: int, fits: bool | None) -> int:
    """Return the code of the limits, or a graver one: 2 where the fan-out does not fit, 3 where that is not known."""
    from kvdiag.model.exit_code import ExitCode

    if fits is False:
        return int(ExitCode.CRITICAL)
    return code if fits or code == ExitCode.CRITICAL else int(ExitCode.UNDETERMINED)
