"""Counters of single queue pairs, summed by engine and type; only where the configuration asks for them."""

from collections import Counter
from collections.abc import Iterator

from kvdiag.errors import UndeterminedError
from kvdiag.model.missing import Missing
from kvdiag.model.rdma_resources import KERNEL_OWNED
from kvdiag.model.rdma_statistic import QueuePairCounter
from kvdiag.sources import rdma_statistic
from kvdiag_exporters.catalog import Metric, Sample
from kvdiag_exporters.collectors.base import Setup
from kvdiag_exporters.going_on import Gone
from kvdiag_exporters.owners import OTHER, Owners

KERNEL = "(kernel)"
MOST_COUNTERS = 4096
"""Of one host that are read: one for each process and type, or each queue pair where somebody bound them so."""
MOST_NAMES = 64
"""Counters' names of one device: mlx5 has 15."""

_OWNED = ("node", "device", "port", "engine", "type")
VALUES = Metric(
    name="kvdiag_rdma_queue_pair_counters_total",
    kind="counter",
    labels=(*_OWNED, "counter"),
    help="Counters of the queue pairs that the kernel counts on their own, by the driver's own names.",
)
PAIRS = Metric(
    name="kvdiag_rdma_counted_queue_pairs",
    kind="gauge",
    labels=_OWNED,
    help="Queue pairs that the kernel counts on their own; all others are in their port's counters only.",
)
METRICS = (VALUES, PAIRS)
_Owned = tuple[str, str, str, str]


class QueuePairCountersCollector:
    """Totals only grow: what a counter object had counted stays in them when it goes with its queue pairs."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._before: dict[tuple[str, int, int], QueuePairCounter] = {}
        self._totals: Counter[tuple[str, ...]] = Counter()
        self.missing: tuple[str, ...] = ()

    def go_on(self, before: "QueuePairCountersCollector", gone: Gone) -> None:
        """Begin with what was counted before a reload."""
        node = self._setup.node
        self._before = before._before
        self._totals = Counter({key: one for key, one in before._totals.items() if not gone.has(VALUES, (node, *key))})

    def collect(self) -> Iterator[Sample]:
        """Yield the sums of every engine; where there are none, `missing` says why for each port."""
        channel = self._setup.netlink
        if channel is None and not self._setup.context.live:
            self.missing = ("RDMA netlink answers for the running kernel only",)
            return
        try:
            found = rdma_statistic.read_queue_pair_counters(channel, self._setup.context.procfs)
            self.missing = self._unobserved(found)
        except UndeterminedError as error:
            self.missing = (str(error),)
            return
        owners = Owners(self._setup)
        pairs: Counter[_Owned] = Counter()
        live = {(one.device, one.port, one.id): one for one in found[:MOST_COUNTERS]}
        for key, one in live.items():
            owned = (one.device, str(one.port), _engine(one, owners), "" if isinstance(one.type, Missing) else one.type)
            pairs[owned] += one.queue_pairs
            before = self._before.get(key)
            if before is not None and (before.type, before.pid) != (one.type, one.pid):
                before = None  # the number was given again
            for name, value in list(one.values.items())[:MOST_NAMES]:
                old = 0 if before is None else before.values.get(name, 0)
                self._totals[(*owned, name)] += value - old if value >= old else value
        self._before = live
        yield from (PAIRS.sample(float(count), self._setup.node, *owned) for owned, count in pairs.items())
        yield from (VALUES.sample(float(count), self._setup.node, *key) for key, count in self._totals.items())

    def _unobserved(self, found: tuple[QueuePairCounter, ...]) -> tuple[str, ...]:
        missing = [f"{len(found)} counters, the first {MOST_COUNTERS} are read"] if len(found) > MOST_COUNTERS else []
        counted = {(one.device, one.port) for one in found}
        for (device, port), mode in rdma_statistic.read_modes(self._setup.netlink).items():
            if isinstance(mode, Missing):
                missing.append(f"queue pairs are not observable here on their own: {mode.missing}")
            elif mode == "none" and (device, port) not in counted:
                missing.append(
                    f"queue pairs of {device}/{port} are not observable here on their own: nobody asked the kernel to "
                    f"count them (rdma statistic qp set link {device}/{port} auto type,pid on; only mlx5 can)"
                )
        return tuple(missing)


def _engine(one: QueuePairCounter, owners: Owners) -> str:
    if isinstance(one.pid, Missing):
        return KERNEL if one.pid == KERNEL_OWNED else OTHER
    return owners.engine(one.pid)


def create(setup: Setup) -> QueuePairCountersCollector | None:
    return QueuePairCountersCollector(setup) if setup.queue_pair_counters else None
