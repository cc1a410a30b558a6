"""`kvdiag probe register`: what registering memory costs on this host's RDMA devices."""

from typing import Annotated, Any

import typer

from kvdiag.cli._output import Format, FormatOption, require
from kvdiag.cli.probe import _options as flags
from kvdiag.cli.probe._trace import traced


def register(app: typer.Typer) -> None:
    app.command(name="register")(probe_register)


def probe_register(
    device: Annotated[
        str | None, typer.Option("--device", help="RDMA device, or several: a,b; default: all with an ACTIVE port.")
    ] = None,
    size: flags.Size = "4KiB,1MiB,16MiB,64MiB",
    pages: Annotated[str, typer.Option("--pages", help="Of 4KiB, thp, hugetlb.")] = "4KiB,thp,hugetlb",
    regions: Annotated[str, typer.Option("--regions", help="Cut the largest size into so many regions.")] = "1,64,1024",
    threads: Annotated[str, typer.Option("--threads", help="Threads that register side by side.")] = "1,2,4",
    rounds: flags.Rounds = 7,
    kv: Annotated[str, typer.Option("--kv", help="KV cache of one request, for the verdict.")] = "1GiB",
    budget_ms: Annotated[
        float | None, typer.Option("--budget-ms", min=0, help="Fail (exit 2) where registering --kv takes longer.")
    ] = None,
    limit_bytes: Annotated[
        str, typer.Option("--limit-bytes", help="Pin at most so much in search of limits.")
    ] = "256MiB",
    limit_regions: Annotated[
        int, typer.Option("--limit-regions", min=1, max=1 << 22, help="Make at most so many regions.")
    ] = 4096,
    min_bandwidth: flags.MinBandwidth = None,
    budget: Annotated[
        str | None,
        typer.Option("--budget", help="Register at most so much a second on average, while no limit is looked for."),
    ] = None,
    out: flags.History = None,
    trace: flags.TraceFile = None,
    baseline: flags.Baseline = None,
    tolerance: flags.Tolerance = flags.TOLERANCE,
    output: FormatOption = Format.TEXT,
) -> int:
    """Time registration by size, page kind, regions, threads and devices; find its limits; judge the request path.

    --min-bandwidth applies to the bytes of --kv registered and deregistered per second. Needs no peer.

    Example: kvdiag probe register --device mlx5_0,mlx5_1 --kv 640MiB --budget-ms 5
    """
    given = locals()
    return traced("register", trace, lambda: _run(**given))


def _run(**given: Any) -> int:
    require("numpy", "probes", "kvdiag probe register")
    from kvdiag.cli.probe import _finish
    from kvdiag.derive.probe_verdicts import judge
    from kvdiag.errors import StoppedError
    from kvdiag.model.probe_register import RegisterDocument, RegisterSettings
    from kvdiag.report.json import head
    from kvdiag.report.probe_register_text import render
    from kvdiag_probes import register_probe as probe
    from kvdiag_probes.budget import Budget
    from kvdiag_probes.registration import judge_path
    from kvdiag_probes.sizes import parse_size, parse_sizes

    _finish.check(given)
    pages = _finish.parse_names(given["pages"], "--pages", probe.PAGES)
    most = 1 << 40
    sizes = tuple(sorted(parse_sizes(given["size"])))
    regions = _finish.parse_counts(given["regions"], "--regions", most=1 << 20)
    threads = _finish.parse_counts(given["threads"], "--threads", most=256)
    kv_bytes = parse_size(given["kv"], "--kv", most=most)
    limit_bytes = parse_size(given["limit_bytes"], "--limit-bytes", most=most)
    devices, link = probe.choose_devices(given["device"])
    settings = RegisterSettings(
        device=devices[0],
        devices=devices,
        sizes=sizes,
        pages=pages,
        regions=regions,
        threads=threads,
        rounds=given["rounds"],
        kv_bytes=kv_bytes,
        budget_s=None if given["budget_ms"] is None else given["budget_ms"] / 1e3,
    )
    allowed = Budget(_finish.parse_rate(given["budget"], "--budget") if given["budget"] else None)
    found, failure = probe.Registration(), None
    try:
        with allowed.in_force():
            probe.measure(settings, limit_bytes, given["limit_regions"], _finish.progress(), found=found)
    except StoppedError as error:
        if not found.rows:
            raise
        failure = error
    verdict = judge_path(found.rows, kv_bytes, link, settings.budget_s)
    cost = probe.kv_metric(found.rows, verdict)
    judged = _finish.judge_rates_of(given, link, [probe.kv_rate(cost, kv_bytes)])
    if settings.budget_s is not None:
        judged = (judge("--budget-ms", cost, settings.budget_s), *judged)
    document = RegisterDocument(
        **head("kvdiag.probe-register/1"),  # type: ignore[arg-type]
        settings=settings,
        rows=tuple(found.rows),
        regions=tuple(found.regions),
        threads=tuple(found.threads),
        devices=tuple(found.devices),
        limits=found.limits,
        verdict=verdict,
        judgements=judged,
        missing=tuple(found.missing),
        failure=str(failure) if failure else None,
    )
    metrics = [one for row in found.rows for one in (row.register, row.deregister)]
    metrics += [row.register for row in found.regions] + [row.per_second for row in found.threads] + [cost]
    metrics += [one for row in found.devices for one in (row.one_after_another, row.side_by_side)]
    return _finish.finish(document, render, given, metrics, failure=failure)
