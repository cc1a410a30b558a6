"""NIXL's prometheus_mp stores: one memory-mapped file of cumulative totals per agent, read without touching them.

Layout of schema 1 (wheels 1.5.0 and 1.5.1, src/plugins/telemetry/prometheus_mp/mp_store.h), little-endian.
"""

import os
import struct
from pathlib import Path

from kvdiag.model.missing import Missing
from kvdiag.model.nixl import EVENTS, Histogram, NixlStore, NixlStores
from kvdiag.sources.base import Context

ENDPOINT = "nixl_telemetry"
"""The endpoint of the context that names the folder (NIXL_TELEMETRY_MULTIPROC_DIR or NIXL_TELEMETRY_DIR)."""

_MAGIC = b"NIXLMPS1"
_SCHEMA = 1
_SLOTS = len(EVENTS)
_MAX_BUCKETS = 33
_HEADER = struct.Struct("<8sIIqQQQ256s128s64s")
_BODY = struct.Struct(f"<{_MAX_BUCKETS - 1}d{_SLOTS}Q{_SLOTS}Q{_SLOTS * _MAX_BUCKETS}Q{_SLOTS}Q")
SIZE_BYTES = _HEADER.size + _BODY.size


class NixlMpSource:
    """The stores in the folder that the context's endpoint names."""

    part = NixlStores

    def read(self, context: Context) -> NixlStores | Missing:
        folder = context.endpoints.get(ENDPOINT)
        if folder is None:
            return Missing("no NIXL telemetry folder was named")
        return read_stores(Path(folder), context.clock.monotonic_s() if context.live else None)


def read_stores(folder: Path, monotonic_s: float | None = None) -> NixlStores | Missing:
    """Return every agent's totals; `monotonic_s` is this host's clock now, without which no heartbeat has an age."""
    stores, unreadable = [], {}
    try:
        names = sorted(os.listdir(folder))  # noqa: PTH208  (glob would hide a folder that cannot be read)
    except OSError as error:
        return Missing(f"{folder}: {error.strerror or error}")
    paths = [folder / name for name in names if name.startswith("nixl.") and name.endswith(".mmap")]
    for path in paths:
        try:
            with path.open("rb") as file:
                stores.append(parse_store(file.read(SIZE_BYTES + 1), str(path), monotonic_s))
        except (OSError, ValueError) as error:
            unreadable[str(path)] = str(error)
    return NixlStores(stores=tuple(stores), unreadable=unreadable)


def parse_store(data: bytes, path: str, monotonic_s: float | None) -> NixlStore:
    """Return the totals in a store; ValueError where the bytes are not a store of a known schema."""
    if len(data) < _HEADER.size or not data.startswith(_MAGIC):
        raise ValueError(f"holds no NIXL store: {len(data)} bytes, begins with {data[:8]!r}")
    _, schema, slots, pid, updated_ns, instance, buckets, agent, hostname, rank = _HEADER.unpack_from(data)
    if (schema, slots, len(data)) != (_SCHEMA, _SLOTS, SIZE_BYTES) or not 0 < buckets < _MAX_BUCKETS:
        raise ValueError(
            f"is a NIXL store of schema {schema}, {slots} slots, {buckets} buckets, {len(data)} bytes: not known"
        )
    values = _BODY.unpack_from(data, _HEADER.size)
    bounds, rest = values[: _MAX_BUCKETS - 1], values[_MAX_BUCKETS - 1 :]
    counters, hist_sums = rest[:_SLOTS], rest[-_SLOTS:]
    counts = rest[2 * _SLOTS : -_SLOTS]
    histograms = {}
    for slot, name in enumerate(EVENTS):
        if name.endswith("_time"):
            row = counts[slot * _MAX_BUCKETS : slot * _MAX_BUCKETS + buckets + 1]
            bounds_s = tuple(bound / 1e6 for bound in bounds[:buckets])
            histograms[name] = Histogram(bounds_s=bounds_s, counts=row, sum_s=hist_sums[slot] / 1e6)
    # lastUpdateNs is CLOCK_MONOTONIC: only comparable on the same boot of the same host.
    age = Missing("written on another host") if monotonic_s is None else max(0.0, monotonic_s - updated_ns / 1e9)
    return NixlStore(
        path=path,
        pid=pid,
        instance=instance,
        agent=_text(agent),
        hostname=_text(hostname),
        local_rank=_text(rank),
        heartbeat_age_s=age,
        totals=dict(zip(EVENTS, counters, strict=True)),
        histograms=histograms,
    )


def _text(raw: bytes) -> str:
    return raw.partition(b"\0")[0].decode(errors="replace")


SOURCE = NixlMpSource()
