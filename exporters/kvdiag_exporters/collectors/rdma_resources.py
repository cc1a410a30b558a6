"""RDMA kernel objects: queue pairs, memory regions and the rest, per device and per engine, through RDMA netlink."""

from collections import Counter
from collections.abc import Iterator

from kvdiag.errors import UndeterminedError
from kvdiag.model.missing import Missing
from kvdiag.model.rdma_resources import KERNEL_OWNED, RdmaResources, ResourceSummary
from kvdiag.sources import rdma_netlink
from kvdiag_exporters.catalog import Metric, Recorded, Sample
from kvdiag_exporters.collectors.base import Setup
from kvdiag_exporters.going_on import Gone
from kvdiag_exporters.owners import OTHER, Owners

KERNEL = "(kernel)"
"""Engine label of what the kernel owns."""

DETAILS_EVERY_S = 10.0
"""A queue pair's state changes without any count changing, so the details are read this often at least."""

FEW = 512
"""Up to so many objects the details are read every time: decoding one costs some tens of microseconds."""

_OWNED = ("node", "device", "engine")

OBJECTS = Metric(
    name="kvdiag_rdma_objects",
    kind="gauge",
    labels=("node", "device", "kind"),
    help="Live RDMA objects of the device by kind: pd, cq, qp, cm_id, mr, ctx, srq.",
)
ENGINE_OBJECTS = Metric(
    name="kvdiag_rdma_engine_objects",
    kind="gauge",
    labels=(*_OWNED, "kind"),
    help="Live RDMA objects by the engine whose process, or child, made them: pd, cq, cm_id, mr.",
)
QUEUE_PAIRS = Metric(
    name="kvdiag_rdma_queue_pairs",
    kind="gauge",
    labels=(*_OWNED, "type", "state"),
    help="Live queue pairs by transport type and state.",
)
REGION_BYTES = Metric(
    name="kvdiag_rdma_memory_region_bytes",
    kind="gauge",
    unit="bytes",
    labels=_OWNED,
    help="Sum of the lengths of the live memory regions; overlapping regions count each.",
)
QUEUE_PAIRS_SEEN = Metric(
    name="kvdiag_rdma_queue_pairs_seen_total",
    kind="counter",
    labels=_OWNED,
    help="Queue pairs that appeared since the exporter started; those that lived between two readings are not seen.",
    recorded=(Recorded(name="conn.qp_created", unit="count"),),
)
REGIONS_SEEN = Metric(
    name="kvdiag_rdma_memory_regions_seen_total",
    kind="counter",
    labels=_OWNED,
    help="Memory regions that appeared since the exporter started; those between two readings are not seen.",
    recorded=(Recorded(name="reg.mr_registered", unit="count", fallback=1),),
)

QUEUE_PAIRS_GONE = Metric(
    name="kvdiag_rdma_queue_pairs_gone_total",
    kind="counter",
    labels=_OWNED,
    help="Queue pairs that were seen and are gone since the exporter started.",
)
REGIONS_GONE = Metric(
    name="kvdiag_rdma_memory_regions_gone_total",
    kind="counter",
    labels=_OWNED,
    help="Memory regions that were seen and are gone since the exporter started: deregistered.",
)
_GONE = {QUEUE_PAIRS_SEEN.name: QUEUE_PAIRS_GONE, REGIONS_SEEN.name: REGIONS_GONE}

METRICS = (OBJECTS, ENGINE_OBJECTS, QUEUE_PAIRS, REGION_BYTES, QUEUE_PAIRS_SEEN, REGIONS_SEEN, *_GONE.values())


class RdmaResourcesCollector:
    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self.missing: tuple[str, ...] = ()
        self._summaries: tuple[ResourceSummary, ...] = ()
        self._details: RdmaResources | None = None
        self._read_s = float("-inf")
        self._known: dict[Metric, dict[tuple[object, ...], str]] = {}
        counted = (QUEUE_PAIRS_SEEN, REGIONS_SEEN, *_GONE.values())
        self._seen: dict[Metric, Counter[tuple[str, str]]] = {metric: Counter() for metric in counted}

    def go_on(self, before: "RdmaResourcesCollector", gone: Gone) -> None:
        """Begin with what was seen before a reload."""
        self._summaries, self._details, self._read_s = before._summaries, before._details, before._read_s
        self._known = {
            metric: {key: OTHER if engine in gone.engines else engine for key, engine in live.items()}
            for metric, live in before._known.items()
        }
        for metric, counts in before._seen.items():
            self._seen[metric] = Counter({key: one for key, one in counts.items() if key[1] not in gone.engines})

    def collect(self) -> Iterator[Sample]:
        """Yield the summary of now and the details, read again when a count changed or they are DETAILS_EVERY_S old."""
        self.missing = ()
        channel = self._setup.netlink
        if channel is None and not self._setup.context.live:
            self.missing = ("RDMA netlink answers for the running kernel only",)
            return
        try:
            summaries = rdma_netlink.read_summaries(channel)
        except UndeterminedError as error:
            self.missing = (str(error),)
            return
        now_s = self._setup.clock.monotonic_s()
        few = sum(sum(one.counts.values()) for one in summaries) <= FEW
        if few or summaries != self._summaries or now_s - self._read_s >= DETAILS_EVERY_S or self._details is None:
            self._details = rdma_netlink.read_resources(channel=channel, proc=self._setup.context.procfs)
            self._read_s = now_s
        self._summaries = summaries
        yield from self.samples(summaries, self._details)

    def samples(self, summaries: tuple[ResourceSummary, ...], details: RdmaResources) -> Iterator[Sample]:
        """Yield the samples of one reading, and count what was not there in the last one."""
        node = self._setup.node
        owners = Owners(self._setup)
        for summary in summaries:
            for kind, count in summary.counts.items():
                yield OBJECTS.sample(float(count), node, summary.device, kind)
        objects: Counter[tuple[str, str, str]] = Counter()
        pairs: Counter[tuple[str, str, str, str]] = Counter()
        lengths: Counter[tuple[str, str]] = Counter()
        for pair in details.queue_pairs:
            pairs[pair.device, _engine(owners, pair.pid), pair.type, pair.state] += 1
        for region in details.memory_regions:
            engine = _engine(owners, region.pid)
            objects[region.device, engine, "mr"] += 1
            lengths[region.device, engine] += region.length
        for other in details.others:
            objects[other.device, _engine(owners, other.pid), other.kind] += other.count
        yield from (QUEUE_PAIRS.sample(float(count), node, *labels) for labels, count in pairs.items())
        yield from (ENGINE_OBJECTS.sample(float(count), node, *labels) for labels, count in objects.items())
        yield from (REGION_BYTES.sample(float(count), node, *labels) for labels, count in lengths.items())
        yield from self._appeared(
            QUEUE_PAIRS_SEEN,
            {(one.device, one.lqpn, str(one.pid)): _engine(owners, one.pid) for one in details.queue_pairs},
        )
        yield from self._appeared(
            REGIONS_SEEN,
            {
                (one.device, one.mrn, one.length, str(one.pid)): _engine(owners, one.pid)
                for one in details.memory_regions
            },
        )

    def _appeared(self, metric: Metric, live: dict[tuple[object, ...], str]) -> Iterator[Sample]:
        seen, gone = self._seen[metric], self._seen[_GONE[metric.name]]
        known = self._known.get(metric, live)
        for key, engine in live.items():
            seen[str(key[0]), engine] += key not in known
            gone[str(key[0]), engine] += 0
        for key, engine in known.items():
            gone[str(key[0]), engine] += key not in live
        self._known[metric] = live
        for one, counts in ((metric, seen), (_GONE[metric.name], gone)):
            yield from (one.sample(float(count), self._setup.node, *labels) for labels, count in counts.items())


def _engine(owners: Owners, pid: int | Missing) -> str:
    if isinstance(pid, Missing):
        return KERNEL if pid == KERNEL_OWNED else OTHER
    return owners.engine(pid)


def create(setup: Setup) -> RdmaResourcesCollector:
    return RdmaResourcesCollector(setup)
