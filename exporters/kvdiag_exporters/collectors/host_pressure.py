"""How long tasks of this host were waiting for processors, memory or disks: what makes every stage of a host slow."""

from collections.abc import Iterator

from kvdiag.model.missing import Missing
from kvdiag.sources.pressure import read_pressure
from kvdiag_exporters.catalog import Metric, Recorded, Sample
from kvdiag_exporters.collectors.base import Setup

STALLED = Metric(
    name="kvdiag_host_stalled_seconds_total",
    kind="counter",
    unit="seconds",
    labels=("node", "resource"),
    help="Time in which a task of the host was waiting for the resource: cpu, memory, io (PSI, some).",
    recorded=tuple(
        Recorded(name=f"host.{name}_stalled_us", unit="us", scale=1e6, where=(("resource", (name,)),))
        for name in ("cpu", "memory", "io")
    ),
)

METRICS = (STALLED,)


class HostPressureCollector:
    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self.missing: tuple[str, ...] = ()

    def collect(self) -> Iterator[Sample]:
        """Yield the resources whose totals the kernel tells, for every node whose engine runs on this host."""
        found = read_pressure(self._setup.tree)
        if isinstance(found, Missing):
            self.missing = (found.missing,)
            return
        self.missing = tuple(one.missing for one in found.stalled_s.values() if isinstance(one, Missing))
        nodes = {self._setup.node, *(engine.node for engine in self._setup.engines if engine.pid is not None)}
        for name, stalled_s in found.stalled_s.items():
            if not isinstance(stalled_s, Missing):
                for node in sorted(nodes):
                    yield STALLED.sample(stalled_s, node, name)


def create(setup: Setup) -> HostPressureCollector:
    return HostPressureCollector(setup)
