"""`kvdiag probe bandwidth|latency` as blocks: curves against size, stages, counters of the ports."""

from kvdiag.model.probe import ProbeDocument
from kvdiag.report.html import charts, curves
from kvdiag.report.html.blocks import Block, Cell, Chart, Empty, Headline, Part, Section, Tile, Tiles, cell, table
from kvdiag.report.html.probe_blocks import closing, ends, headline, metric
from kvdiag.report.html.units import bits, count, duration, moment, number, rate, size

_QUANTILES = (("p50", "p50"), ("p99", "p99"), ("p99.9", "p999"))


def part(document: ProbeDocument) -> Part:
    """Return everything about one bandwidth or latency probe."""
    settings, to = document.settings, document.ends
    how = f"{settings.operation} over {settings.transport.upper()}, queue depth {settings.queue_depth}"
    sections = [_curves(document), _sizes(document), _run(document)]
    sections += closing(document.judgements, ((settings.transport.upper(), document.proof),), ())
    return Part(
        title=f"Probe {settings.kind}: {document.host} → {to.peer_host}",
        subtitle=f"{how}; {ends(to)}; {moment(document.time)}",
        headline=_headline(document),
        sections=tuple(sections),
    )


def _headline(document: ProbeDocument) -> Headline:
    settings = document.settings
    if settings.kind == "latency":
        best = min(document.results, key=lambda one: one.latency_s.p50, default=None)
    else:
        best = max(document.results, key=lambda one: one.bytes_per_second, default=None)
    sentence, figure, note = "Nothing was measured", "", ""
    if best is not None:
        times, of = best.latency_s, size(best.size_bytes)
        said = f"{settings.operation} of {of}: p50 {duration(times.p50)}, p99 {duration(times.p99)}"
        sentence, figure, note = f"Latency of a {said}", duration(times.p50), f"median latency at {of}"
        if settings.kind == "bandwidth":
            speed = bits(best.bytes_per_second)
            sentence = f"{speed} at {of}, p99 latency {duration(times.p99)} at queue depth {settings.queue_depth}"
            figure, note = speed, f"highest average, at {of}"
    missed = [f"{one.name} at {size(one.size_bytes)}" for one in document.thresholds if not one.met]
    return headline(
        sentence,
        figure,
        note,
        judgements=document.judgements,
        proof=document.proof,
        failure=document.failure,
        missed=missed,
    )


def _curves(document: ProbeDocument) -> Section:
    results = document.results
    if not results:
        return Section(title="Against size", blocks=(Empty(title="No sizes", reason="nothing was measured"),))
    speed, times = [], []
    for one in results:
        common = {"x": max(one.size_bytes, 1), "size": size(one.size_bytes)}
        for series, value in (("average", one.bytes_per_second), ("peak", one.peak_bytes_per_second)):
            said = bits(value)
            speed.append(
                common | {"series": series, "value": max(value * 8, 1.0), "low": None, "high": None, "text": said}
            )
        for series, name in _QUANTILES:
            value = getattr(one.latency_s, name)
            said = duration(value)
            times.append(
                common | {"series": series, "value": max(value, 1e-9), "low": None, "high": None, "text": said}
            )
    told = "; ".join(f"{size(one.size_bytes)}: {bits(one.bytes_per_second)}" for one in results)
    late = "; ".join(
        f"{size(one.size_bytes)}: p50 {duration(one.latency_s.p50)}, p99 {duration(one.latency_s.p99)}"
        for one in results
    )
    bandwidth = Chart(title="Bandwidth against size", summary=told,
                      spec=curves.by_size(speed, ("average", "peak"), "bits_per_second"))  # fmt: skip
    half = ", half of each round trip" if document.settings.ping_pong else ", from post to completion"
    latency = Chart(title=f"Latency against size{half}", summary=late,
                    spec=curves.by_size(times, [name for name, _ in _QUANTILES], "seconds"))  # fmt: skip
    order = (latency, bandwidth) if document.settings.kind == "latency" else (bandwidth, latency)
    return Section(title="Against size", blocks=order, lead="Both axes are logarithmic.")


def _sizes(document: ProbeDocument) -> Section:
    rows, spread = [], []
    for one in document.results:
        times = one.latency_s
        rows.append(
            (
                Cell(size(one.size_bytes), order=one.size_bytes, strong=True),
                cell(f"{one.iterations:,}", one.iterations),
                cell(bits(one.bytes_per_second), one.bytes_per_second),
                cell(bits(one.peak_bytes_per_second), one.peak_bytes_per_second),
                cell(bits(one.reverse_bytes_per_second), one.reverse_bytes_per_second),
                cell(rate(one.operations_per_second, "/s"), one.operations_per_second),
                cell("every byte" if one.verified_bytes >= one.bytes else size(one.verified_bytes), one.verified_bytes),
            )
        )
        values = (times.minimum, times.mean, times.p50, times.p90, times.p99, times.p999, times.maximum)
        spread.append(
            (
                Cell(size(one.size_bytes), order=one.size_bytes, strong=True),
                cell(f"{times.count:,}", times.count),
                *(cell(duration(value), value) for value in values),
            )
        )
    heads = ("#size", "#operations", "#average", "#peak", "#peer's direction", "#operations per second", "#verified")
    tails = ("#size", "#timed", "#min", "#mean", "#p50", "#p90", "#p99", "#p99.9", "#max")
    rough = any(not one.latency_exact for one in document.results)
    note = "Percentiles of some sizes are those of a histogram, off by 1/4096 at most." if rough else ""
    blocks: list[Block] = [table("Rates", heads, rows), table("Latencies", tails, spread, note)]
    if document.metrics:
        found = [(cell(one.name), metric(one), cell(one.samples, one.samples)) for one in document.metrics]
        blocks.append(
            table(f"Over {count(document.rounds, 'round')}", ("figure", "#median (interval)", "#rounds"), found)
        )
    if document.thresholds:
        bounds = [
            (
                Cell("met" if one.met else "missed", state="good" if one.met else "critical"),
                Cell(one.name, code=True),
                cell(size(one.size_bytes), one.size_bytes),
                cell(f"{number(one.value)} {one.unit}", one.value),
                cell(f"{number(one.limit)} {one.unit}", one.limit),
            )
            for one in document.thresholds
        ]
        blocks.append(table("Thresholds", ("verdict", "rule", "#size", "#reached", "#limit"), bounds))
    return Section(title="Figures", blocks=tuple(blocks))


def _run(document: ProbeDocument) -> Section:
    took, to = document.durations, document.ends
    tiles = [
        Tile("connect", duration(took.connect_s), "first queue pair call to both ends connected"),
        Tile("register", duration(took.register_s), f"peer {duration(took.peer_register_s)}"),
        Tile("first transfer", duration(took.first_transfer_s), f"steady {duration(took.steady_transfer_s)}"),
    ]
    if took.register_s is None:
        tiles[1] = Tile("register", "–", "TCP registers no memory")
    if document.ordering is not None:
        rounds = document.ordering.rounds
        tiles.append(Tile("ordering", f"{rounds:,} of {rounds:,}", "flags seen after the whole payload"))
    blocks: list[Block] = [Tiles(tiles=tuple(tiles))]
    if took.stages:
        rows = [
            {"name": one.stage.replace("_", " "), "series": "run", "value": one.seconds, "text": duration(one.seconds)}
            for one in took.stages
        ]
        said = ", ".join(f"{row['name']} {row['text']}" for row in rows)
        whole = f", {duration(took.total_s)} in all" if took.total_s is not None else ""
        spec = charts.grouped(rows, ("run",), "seconds")
        blocks.append(Chart(title=f"Stages of the run{whole}", summary=said, spec=spec, wide=True))
    if document.port_errors:
        grown = [
            (
                cell(one.port),
                cell(
                    one.missing or ", ".join(f"{name} +{by:,}" for name, by in (one.grown or {}).items()) or "none grew"
                ),
            )
            for one in document.port_errors
        ]
        blocks.append(table("Error counters of the ports during the probe", ("port", "grown"), grown))
    else:
        why = "TCP uses no RDMA port" if document.settings.transport == "tcp" else "the probe read no port"
        blocks.append(Empty(title="Error counters of the ports", reason=f"not observable here: {why}"))
    facts = (
        ("local memory", to.local_memory),
        ("peer memory", to.peer_memory),
        ("rails", ", ".join(to.rails)),
        ("pinning", to.pinning),
        ("completion timestamps", to.completion_timestamps),
        ("latency loop", to.latency_loop),
        ("latency loop of the peer", to.peer_latency_loop),
    )
    known = [(cell(name), cell(value)) for name, value in facts if value]
    if known:
        blocks.append(table("Ends", ("what", "found"), known))
    return Section(title="The run", blocks=tuple(blocks))
