"""A probe's result for people: perftest's columns, then durations, proof and thresholds."""

from rich.console import Group, RenderableType
from rich.text import Text

from kvdiag.model.probe import ProbeDocument
from kvdiag.report import probe_parts as parts

_MICROSECONDS = 1e6
_MIB = 1 << 20


def render(document: ProbeDocument) -> RenderableType:
    """Return everything a terminal shows; MiB/s and Mops/s as perftest prints them, latencies in microseconds."""
    return Group(
        *_head(document),
        _rates(document),
        _latencies(document),
        *_rounds(document),
        *_durations(document),
        *([] if document.failure else _proof(document)),
        *_errors(document),
        *_ordering(document),
        *_thresholds(document),
        *parts.judgements(document.judgements),
        *_incomplete(document),
    )


def _incomplete(document: ProbeDocument) -> list[Text]:
    if not document.failure:
        return []
    whole, asked = document.rounds if document.metrics else 0, document.rounds_asked
    if whole:
        what = f"round {whole + 1} of {asked} failed; these are the {whole} before it"
    else:
        what = f"the run failed{f' in round 1 of {asked}' if asked > 1 else ''}; these are the sizes before that"
    return [Text(f"INCOMPLETE: {what}", "bold red")]


def _head(document: ProbeDocument) -> list[Text]:
    settings, ends = document.settings, document.ends
    title = (
        f"{settings.operation.upper()} {settings.kind} over {settings.transport.upper()}: {document.host} -> "
        f"{ends.peer} ({ends.peer_host}), queue depth {settings.queue_depth}"
        + (f", {document.rounds} rounds" if document.rounds > 1 else "")
    )
    lines = [Text(title, style="bold")]
    if ends.local_device:
        lines.append(Text(f"{ends.local_device} -> {ends.peer_device}, path MTU {ends.path_mtu}"))
        lines += [Text(rail) for rail in ends.rails]
        options = [
            f"{settings.queue_pairs} queue pairs" if settings.queue_pairs > 1 else "",
            "both directions at once" if settings.bidirectional else "",
            "ping-pong: latencies are half of each round trip" if settings.ping_pong else "",
            "relaxed ordering" if settings.relaxed_ordering else "",
            ends.pinning or "",
        ]
        lines.append(Text(", ".join(filter(None, options))))
        lines.append(Text(f"memory: {ends.local_memory}; peer: {ends.peer_memory}"))
        lines.append(Text(f"completion timestamps: {ends.completion_timestamps}"))
        if ends.latency_loop:
            peer = f"; peer: {ends.peer_latency_loop}" if ends.peer_latency_loop else ""
            lines.append(Text(f"latency loop: {ends.latency_loop}{peer}"))
    return lines


def _rates(document: ProbeDocument) -> parts.Columns:
    return parts.table(
        ("#bytes", "#iterations", "BW peak[MiB/s]", "BW average[MiB/s]", "Gb/s", "ops/s"),
        (
            (
                str(result.size_bytes),
                str(result.iterations),
                f"{result.peak_bytes_per_second / _MIB:.2f}",
                f"{result.bytes_per_second / _MIB:.2f}",
                f"{result.bytes_per_second * 8 / 1e9:.3f}",
                f"{result.operations_per_second:.0f}",
            )
            for result in document.results
        ),
    )


def _latencies(document: ProbeDocument) -> parts.Columns:
    rows = []
    for result in document.results:
        times = result.latency_s
        values = (times.minimum, times.p50, times.p90, times.p99, times.p999, times.maximum)
        rows.append((str(result.size_bytes), str(times.count), *(f"{value * _MICROSECONDS:.1f}" for value in values)))
    names = ("t_min[µs]", "t_p50", "t_p90", "t_p99", "t_p99.9", "t_max")
    return parts.table(("#bytes", "#timed", *names), rows)


def _rounds(document: ProbeDocument) -> list[RenderableType]:
    if document.rounds < 2:
        return []
    kind = document.settings.kind
    metrics = {one.name: one for one in document.metrics}
    rows = []
    for result in document.results:
        name = f"{kind}.{result.size_bytes}"
        rate, p50 = metrics[f"{name}.bandwidth"], metrics[f"{name}.latency_p50"]
        rows.append((str(result.size_bytes), parts.interval(rate, 1 / _MIB), parts.interval(p50, _MICROSECONDS, ".1f")))
    which = "the last round that its counts contradict" if document.proof.status == "contradicted" else "the last round"
    head = Text(
        f"the above of {which}; medians of all {document.rounds}, and their intervals, by which limits are judged:"
    )
    return [head, parts.table(("#bytes", "BW average[MiB/s]", "t_p50[µs]"), rows)]


def _durations(document: ProbeDocument) -> list[Text]:
    durations = document.durations
    said = [f"set-up {_seconds(durations.connect_s)}"]
    if durations.register_s is not None and durations.peer_register_s is not None:
        said.append(f"register {_seconds(durations.register_s)} (peer {_seconds(durations.peer_register_s)})")
    said.append(f"first transfer {_seconds(durations.first_transfer_s)}")
    said.append(f"steady transfer {_seconds(durations.steady_transfer_s)}")
    lines = [Text("durations: " + ", ".join(said))]
    if durations.total_s is not None:
        split = ", ".join(f"{one.stage.replace('_', ' ')} {_seconds(one.seconds)}" for one in durations.stages)
        lines.append(Text(f"stages of {_seconds(durations.total_s)}: {split}"))
    verified = sum(result.verified_bytes for result in document.results)
    return [*lines, Text(f"verified: {verified} bytes, every one as sent")]


def _proof(document: ProbeDocument) -> list[Text]:
    proof = document.proof
    words = {"proved": "proved", "contradicted": "CONTRADICTED", "not_observable": "not observable here"}
    lines = [Text(f"carried by {document.settings.transport.upper()}: {words[proof.status]}")]
    for item in proof.evidence:
        bound = f" ({item.threshold})" if item.threshold else ""
        lines.append(Text(f"  {item.name}: {item.value}{bound} [{item.source}]"))
    lines += [Text(f"  {reason}") for reason in proof.missing]
    return lines


def _errors(document: ProbeDocument) -> list[Text]:
    lines = []
    for port in document.port_errors:
        if port.grown is None:
            lines.append(Text(f"error counters of {port.port}: {port.missing}"))
            continue
        moved = ", ".join(f"{name} +{grown}" for name, grown in port.grown.items())
        lines.append(Text(f"error counters of {port.port}: {moved or 'none moved'}"))
    return lines


def _ordering(document: ProbeDocument) -> list[Text]:
    check = document.ordering
    if check is None:
        return []
    return [Text(f"ordering: {check.rounds} of {check.rounds} flags seen after the whole {check.size_bytes} bytes")]


def _thresholds(document: ProbeDocument) -> list[Text]:
    return [
        Text(
            f"{'met' if bound.met else 'MISSED'}: {bound.name} {bound.limit:g}: {bound.size_bytes} bytes reached "
            f"{bound.value:.3f} {bound.unit}{' in the worst round' if document.rounds > 1 else ''}",
            style="" if bound.met else "bold red",
        )
        for bound in document.thresholds
    ]


def _seconds(value: float) -> str:
    return f"{value * 1e3:.3f} ms" if value < 1 else f"{value:.3f} s"
