"""Read a trace bundle: a folder with requests, and where recorded counters, events and meta.json."""

from pathlib import Path
from typing import Any

import msgspec

from kvdiag.errors import InputError
from kvdiag.model.bundle import Bundle, BundleEvent, CounterSeries, MetricInfo, RequestColumns

SCHEMA = "kvdiag.bundle/1"
COUNTERS = frozenset(
    {
        "nic.tx_bytes",
        "nic.rx_bytes",
        "nic.cnp",
        "nic.ecn_marked",
        "nic.pause_us",
        "nic.out_of_sequence",
        "nic.retransmits",
        "nic.ack_timeouts",
        "nic.symbol_errors",
        "host.tcp_rx_bytes",
        "host.cpu_stalled_us",
        "host.io_stalled_us",
        "host.memory_stalled_us",
        "reg.mr_registered",
        "reg.mr_register_us",
        "reg.cache_misses",
        "reg.cache_lookups",
        "conn.qp_created",
        "conn.handle_alloc_failures",
        "engine.prefill_tokens",
        "engine.arrivals",
        "nixl.registered_bytes",
        "nixl.deregistered_bytes",
        "nixl.post_time_us",
        "nixl.reads",
        "nixl.rx_bytes",
        "nixl.transfers",
        "nixl.tx_bytes",
        "nixl.writes",
        "nixl.xfer_time_us",
    }
)
GAUGES = frozenset(
    {
        "nic.link_gbps",
        "conn.handles_in_use",
        "engine.prefill_queue_depth",
        "engine.prefill_batch_tokens",
        "engine.kv_cache_usage",
        "engine.admit_queue_depth",
        "engine.pull_queue_depth",
        "engine.pulls_in_flight",
    }
)
"""The metric names of the trace bundle format, by their kind where meta.json does not say; others are noted."""

MOST_NAMES = 5
"""Of unknown metrics that a note lists."""


class _Node(msgspec.Struct):
    role: str = ""


class _Metric(msgspec.Struct):
    kind: str
    unit: str = ""


class _Meta(msgspec.Struct):
    schema: str = SCHEMA
    source: Any = None
    nodes: dict[str, _Node] = {}
    metrics: dict[str, _Metric] = {}
    sampling: float | None = None
    incident_start_s: float | None = None


def read_bundle(path: Path | str) -> Bundle:
    """Return the bundle of a folder.

    InputError (file, line, field) for what cannot be read as a bundle, UndeterminedError where it holds no request
    or needs pyarrow and that is not installed.
    """
    from kvdiag.sources import _bundle_counters, _bundle_requests
    from kvdiag.sources._tables import open_table

    folder = Path(path)
    if folder.name.endswith((".tar.zst", ".tar")) and folder.is_file():
        raise InputError(f"{folder}: an archive; unpack it first (tar -xf {folder.name}) and give the folder")
    if not folder.is_dir():
        raise InputError(
            f"{folder}: {'not a folder' if folder.exists() else 'no such folder'}; give a trace bundle's folder"
        )
    notes: list[str] = []
    meta = _read_meta(folder, notes)
    try:
        requests_table = open_table(folder, "requests", notes, ("request_id", "arrival_s"))
        if requests_table is None:
            raise InputError(f"{folder}: no requests.jsonl or requests.parquet in it; is it a trace bundle?")
        requests = _bundle_requests.read_requests(requests_table, notes)
        counters_table, events_table = open_table(folder, "counters", notes), open_table(folder, "events", notes)
    except OSError as error:
        raise InputError(f"{error.filename}: {error.strerror}") from None
    series: tuple[CounterSeries, ...] = ()
    if counters_table is not None:
        series = _bundle_counters.read_counters(counters_table, notes)
        _note_another_time(requests, series, notes)
    events: tuple[BundleEvent, ...] = ()
    if events_table is not None:
        events = _bundle_counters.read_events(events_table, notes)
    metrics = {name: MetricInfo(kind=info.kind, unit=info.unit) for name, info in meta.metrics.items()}
    found = {one.metric for one in series}
    for name in sorted(found - metrics.keys()):
        metrics[name] = MetricInfo(kind="gauge" if name in GAUGES else "counter", unit="")
    unknown = sorted(found - COUNTERS - GAUGES)
    if unknown:
        some = ", ".join(unknown[:MOST_NAMES]) + (", ..." if len(unknown) > MOST_NAMES else "")
        notes.append(f"counters: {len(unknown)} metric(s) of other names were not used: {some}")
    return Bundle(
        origin=str(folder),
        requests=requests,
        series=series,
        metrics=metrics,
        events=events,
        roles={name: node.role for name, node in meta.nodes.items()},
        sampling=meta.sampling,
        incident_start_s=meta.incident_start_s,
        notes=tuple(notes),
    )


def _note_another_time(requests: RequestColumns, series: tuple[CounterSeries, ...], notes: list[str]) -> None:
    """Say so where no counter was read while the requests ran: another clock or unit."""
    if not series:
        return
    arrival = requests.numbers["arrival_s"]
    begin, end = min(float(one.time_s[0]) for one in series), max(float(one.time_s[-1]) for one in series)
    if end < arrival[0] or begin > arrival[-1]:
        notes.append(
            f"counters: recorded from time_s {begin:.3f} to {end:.3f}, none of them at the time of the requests "
            f"({arrival[0]:.3f} to {arrival[-1]:.3f}); are both in seconds on one clock?"
        )


def _read_meta(folder: Path, notes: list[str]) -> _Meta:
    path = folder / "meta.json"
    if not path.exists():
        notes.append("meta.json is missing: no announced change point, sampling unknown, metric kinds by name")
        return _Meta()
    try:
        raw: Any = msgspec.json.decode(path.read_bytes())
        meta = msgspec.convert(raw, _Meta)
    except msgspec.ValidationError as error:
        raise InputError(f"{path}: {error}") from None
    except msgspec.DecodeError as error:
        raise InputError(f"{path}: {error}; correct it, or remove it: the recording can be read without it") from None
    if "schema" not in raw:
        known = raw.keys() & set(_Meta.__struct_fields__)
        notes.append(
            f"meta.json names no schema: read as {SCHEMA}"
            if known
            else f"meta.json is no bundle's: its fields are {', '.join(raw) or 'none'}; read as if it were missing"
        )
    if meta.schema != SCHEMA:
        raise InputError(f"{path}: schema is {meta.schema!r}, and this kvdiag reads {SCHEMA!r}")
    lost = meta.source.get("lost_lines") if isinstance(meta.source, dict) else None
    if lost:
        notes.append(
            f"{lost} lines could not be recorded (a full disk, or files removed meanwhile): what is "
            "found in this bundle is incomplete"
        )
    if meta.sampling is not None and not 0 < meta.sampling <= 1:
        raise InputError(f"{path}: sampling is {meta.sampling:g}; it must be above 0 and at most 1")
    for name, metric in meta.metrics.items():
        if metric.kind not in ("counter", "gauge"):
            raise InputError(f"{path}: metrics[{name!r}].kind is {metric.kind!r}; it must be counter or gauge")
    return meta
