"""NIXL agents: traffic, transfer times, registered memory and errors, from their own telemetry files.

An agent writes a prometheus_mp store (cumulative, lossless) or a BUFFER ring (lossy once full); whichever is there is
read. Only the initiator of a transfer counts it: WRITE as sent, READ as received.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from kvdiag.derive.nixl import RingTotals
from kvdiag.model.missing import Missing
from kvdiag.model.nixl import EVENTS, Histogram, NixlRings, NixlStore
from kvdiag.sources.nixl_mp import read_stores
from kvdiag.sources.nixl_ring import read_rings
from kvdiag_exporters.catalog import Buckets, Metric, Recorded, Sample
from kvdiag_exporters.collectors.base import Setup
from kvdiag_exporters.going_on import Gone

_LABELS = ("node", "engine", "role", "rank")
STALE_S = 30.0
"""An agent that has not written its store for so long is stale; NIXL's own limit (NIXL_TELEMETRY_MP_STALE_TTL)."""

MOST_GONE = 1024
"""Files of one engine that are remembered after they have gone, a few kilobytes each."""
T = TypeVar("T")

# The buckets that NIXL 1.5 itself uses, 10 µs to 10 s (NIXL_TELEMETRY_HISTOGRAM_BUCKETS_US); used for rings.
_BOUNDS_S = (
    1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3,
    0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 10.0,
)  # fmt: skip


def _counter(name: str, help_: str, unit: str = "", recorded: str = "", recorded_unit: str = "count") -> Metric:
    return Metric(
        name=name,
        kind="counter",
        unit=unit,
        labels=_LABELS,
        help=help_,
        recorded=(Recorded(name=recorded, unit=recorded_unit),) if recorded else (),
    )


def _times(name: str, help_: str, recorded: tuple[Recorded, ...]) -> Metric:
    return Metric(name=name, kind="histogram", unit="seconds", labels=_LABELS, help=help_, recorded=recorded)


REGISTERED = _counter("kvdiag_nixl_registered_bytes_total", "Bytes registered.", "bytes", "nixl.registered_bytes", "B")
DEREGISTERED = _counter(
    "kvdiag_nixl_deregistered_bytes_total", "Bytes deregistered.", "bytes", "nixl.deregistered_bytes", "B"
)
_TOTALS = {
    "tx_bytes": _counter("kvdiag_nixl_transmit_bytes_total", "Bytes written to peers.", "bytes", "nixl.tx_bytes", "B"),
    "rx_bytes": _counter("kvdiag_nixl_receive_bytes_total", "Bytes read from peers.", "bytes", "nixl.rx_bytes", "B"),
    "tx_requests_num": _counter("kvdiag_nixl_write_transfers_total", "Completed WRITE transfers.", "", "nixl.writes"),
    "rx_requests_num": _counter("kvdiag_nixl_read_transfers_total", "Completed READ transfers.", "", "nixl.reads"),
    "memory_registered": REGISTERED,
    "memory_deregistered": DEREGISTERED,
    "telemetry_events_dropped": _counter(
        "kvdiag_nixl_dropped_events_total", "Telemetry events that NIXL dropped before its sink."
    ),
}
_TIMES = {
    "xfer_time": _times(
        "kvdiag_nixl_transfer_seconds",
        "Time of a transfer from its start until the application saw it complete.",
        (
            Recorded(name="nixl.xfer_time_us", unit="us", scale=1e6, part="sum"),
            Recorded(name="nixl.transfers", unit="count", part="count"),
        ),
    ),
    "xfer_post_time": _times(
        "kvdiag_nixl_post_seconds",
        "Time of a transfer from its start until it was posted to the backend.",
        (Recorded(name="nixl.post_time_us", unit="us", scale=1e6, part="sum"),),
    ),
}
ERRORS = Metric(
    name="kvdiag_nixl_errors_total",
    kind="counter",
    labels=(*_LABELS, "status"),
    help="Failed operations by status; NIXL counts no disconnected peer here.",
)
REGISTRATIONS = Metric(
    name="kvdiag_nixl_registrations_total",
    kind="counter",
    labels=_LABELS,
    help="Calls that registered memory; only a ring tells them.",
    # The kernel counts the same regions where they are RDMA memory regions.
    recorded=(Recorded(name="reg.mr_registered", unit="count", fallback=2),),
)
AGENTS = Metric(
    name="kvdiag_nixl_agents",
    kind="gauge",
    labels=(*_LABELS, "state"),
    help="Agents by state: live or stale (no heartbeat for 30 s) with a store, ring where only a ring tells of it.",
)
HEARTBEAT = Metric(
    name="kvdiag_nixl_heartbeat_age_seconds",
    kind="gauge",
    unit="seconds",
    labels=_LABELS,
    help="How long ago the freshest agent wrote its store.",
)
RING_FILL = Metric(
    name="kvdiag_nixl_ring_fill_ratio",
    kind="gauge",
    unit="ratio",
    labels=_LABELS,
    help="How full the fullest ring is; at 1 NIXL drops every further event and the totals stand still.",
)

METRICS = (*_TOTALS.values(), *_TIMES.values(), ERRORS, REGISTRATIONS, AGENTS, HEARTBEAT, RING_FILL)


@dataclass(slots=True)
class _Rank:
    """The sums over all agents of one rank of one engine; not `whole` where a file of theirs cannot be read now."""

    totals: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    times: dict[str, Histogram] = field(default_factory=dict)
    states: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    registrations: int | None = None
    heartbeat_s: float | None = None
    fill: float | None = None
    whole: bool = True

    def add_store(self, store: NixlStore) -> None:
        for name, value in store.totals.items():
            self.totals[name] += value
        for name, one in store.histograms.items():
            self.add_times(name, one)

    def add_times(self, name: str, one: Histogram) -> None:
        known = self.times.get(name)
        if known is not None and known.bounds_s == one.bounds_s:
            counts = tuple(a + b for a, b in zip(known.counts, one.counts, strict=True))
            one = Histogram(bounds_s=one.bounds_s, counts=counts, sum_s=known.sum_s + one.sum_s)
        self.times[name] = one


class _Ring:
    """The running totals of one ring, and the times of its transfers in buckets."""

    def __init__(self) -> None:
        self.totals = RingTotals()
        self.counts = {name: [0] * (len(_BOUNDS_S) + 1) for name in _TIMES}

    def histogram(self, name: str) -> Histogram:
        sum_s = self.totals.totals.get(name, 0) / 1e6
        return Histogram(bounds_s=_BOUNDS_S, counts=tuple(self.counts[name]), sum_s=sum_s)


class NixlCollector:
    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._rings: dict[Path, dict[str, _Ring]] = {}
        self._stores: dict[Path, dict[str, NixlStore]] = {}
        self.missing: tuple[str, ...] = ()

    def go_on(self, before: "NixlCollector", gone: Gone) -> None:  # noqa: ARG002
        """Begin with what the folders that are still read had told before a reload."""
        read = {one.nixl_telemetry for one in self._setup.engines}
        self._rings = {folder: rings for folder, rings in before._rings.items() if folder in read}
        self._stores = {folder: stores for folder, stores in before._stores.items() if folder in read}

    def collect(self) -> Iterator[Sample]:
        """Yield the totals of every engine and rank; a file that cannot be read is named in `missing`."""
        missing: list[str] = []
        for engine in self._setup.engines:
            if engine.nixl_telemetry is not None:
                ranks = self._ranks(engine.nixl_telemetry, missing)
                for rank, sums in sorted(ranks.items()):
                    yield from _samples(sums, (*engine.labels, rank))
        self.missing = tuple(missing)

    def _ranks(self, folder: Path, missing: list[str]) -> dict[str, _Rank]:
        ranks: defaultdict[str, _Rank] = defaultdict(_Rank)
        stores = read_stores(folder, self._setup.clock.monotonic_s())
        rings = read_rings(folder)
        if isinstance(stores, Missing) or isinstance(rings, Missing):
            missing.append(str(stores if isinstance(stores, Missing) else rings))
            return ranks
        missing += [f"{path}: {why}" for path, why in {**stores.unreadable, **rings.unreadable}.items()]
        known = self._stores.setdefault(folder, {})
        for path in stores.unreadable.keys() & known.keys():
            ranks[known[path].local_rank].whole = False
        known.update((store.path, store) for store in stores.stores)
        # What an agent has moved stays moved when its file goes with it: a sum that falls would look like new traffic.
        gone = known.keys() - {store.path for store in stores.stores} - stores.unreadable.keys()
        _forget(known, gone)
        for store in known.values():
            ranks[store.local_rank].add_store(store)
        for store in stores.stores:
            rank = ranks[store.local_rank]
            if not isinstance(store.heartbeat_age_s, Missing):
                rank.states["stale" if store.heartbeat_age_s > STALE_S else "live"] += 1
                ages = (
                    [store.heartbeat_age_s] if rank.heartbeat_s is None else [store.heartbeat_age_s, rank.heartbeat_s]
                )
                rank.heartbeat_s = min(ages)
        self._add_rings(folder, rings, ranks)
        return ranks

    def _add_rings(self, folder: Path, rings: NixlRings, ranks: defaultdict[str, _Rank]) -> None:
        """Add what rings told so far, those that have gone since too."""
        known = self._rings.setdefault(folder, {})
        for ring in rings.rings:
            one, rank = known.setdefault(ring.path, _Ring()), ranks[""]
            for name, value in one.totals.update(ring):
                if name in one.counts:
                    one.counts[name][bisect_left(_BOUNDS_S, value / 1e6)] += 1
            rank.states["ring"] += 1
            rank.fill = max(rank.fill or 0.0, len(ring.events) / (ring.capacity - 1))
        _forget(known, known.keys() - {ring.path for ring in rings.rings} - rings.unreadable.keys())
        if known:
            ranks[""].whole &= not rings.unreadable.keys() & known.keys()
        for one in known.values():
            rank = ranks[""]
            for name in EVENTS:
                # Each error is one event; its value is not a count in every version.
                source = one.totals.counts if name.startswith("err_") else one.totals.totals
                rank.totals[name] += source.get(name, 0)
            for name in _TIMES:
                rank.add_times(name, one.histogram(name))
            rank.registrations = (rank.registrations or 0) + one.totals.counts.get("memory_registered", 0)


def _forget(known: dict[str, T], gone: Collection[str]) -> None:
    """Keep MOST_GONE of those that have gone, in the order in which they came."""
    for path in [one for one in known if one in gone][:-MOST_GONE]:
        del known[path]


def _samples(rank: _Rank, labels: tuple[str, ...]) -> Iterator[Sample]:
    if rank.whole:
        yield from _sums(rank, labels)
    for state, count in sorted(rank.states.items()):
        yield AGENTS.sample(float(count), *labels, state)
    if rank.heartbeat_s is not None:
        yield HEARTBEAT.sample(rank.heartbeat_s, *labels)
    if rank.fill is not None:
        yield RING_FILL.sample(rank.fill, *labels)


def _sums(rank: _Rank, labels: tuple[str, ...]) -> Iterator[Sample]:
    for name, metric in _TOTALS.items():
        yield metric.sample(float(rank.totals[name]), *labels)
    for name, one in rank.times.items():
        yield _TIMES[name].sample(Buckets(one.bounds_s, one.counts, one.sum_s), *labels)
    for name in EVENTS:
        if name.startswith("err_"):
            yield ERRORS.sample(float(rank.totals[name]), *labels, name.removeprefix("err_"))
    if rank.registrations is not None:
        yield REGISTRATIONS.sample(float(rank.registrations), *labels)


def create(setup: Setup) -> NixlCollector | None:
    return NixlCollector(setup) if any(one.nixl_telemetry is not None for one in setup.engines) else None
