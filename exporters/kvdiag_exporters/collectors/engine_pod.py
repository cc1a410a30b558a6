"""The Kubernetes pods that engines run in, by their processes' control groups."""

from collections.abc import Iterator

from kvdiag.model.missing import Missing
from kvdiag.model.pod import Pod
from kvdiag.sources._pods import pod_of
from kvdiag_exporters.catalog import Metric, Sample
from kvdiag_exporters.collectors.base import Setup

LOOK_EVERY_S = 30.0
"""A process never changes its pod; a process id may become another one's."""

POD = Metric(
    name="kvdiag_engine_pod_info",
    kind="gauge",
    labels=("node", "engine", "role", "namespace", "pod", "pod_uid"),
    help="1, with the engine's pod; names are empty where /var/log/pods of the node cannot be read.",
)

METRICS = (POD,)


class EnginePodCollector:
    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._looked_s = float("-inf")
        self._found: dict[str, Pod | Missing] = {}
        self.missing: tuple[str, ...] = ()

    def collect(self) -> Iterator[Sample]:
        """Yield the pod of each engine that runs in one; outside Kubernetes there is none, and that is no fault."""
        now_s = self._setup.clock.monotonic_s()
        engines = [one for one in self._setup.engines if one.pid is not None]
        if now_s - self._looked_s >= LOOK_EVERY_S:
            self._found = {one.name: pod_of(self._setup.tree, one.pid) for one in engines if one.pid is not None}
            self._looked_s = now_s
        missing = []
        for engine in engines:
            pod = self._found[engine.name]
            if isinstance(pod, Missing):
                continue
            names = ["" if isinstance(one, Missing) else one for one in (pod.namespace, pod.name)]
            if isinstance(pod.name, Missing):
                missing.append(f"engine {engine.name}: {pod.name.missing}")
            yield POD.sample(1.0, *engine.labels, *names, pod.uid)
        self.missing = tuple(missing)


def create(setup: Setup) -> EnginePodCollector | None:
    return EnginePodCollector(setup) if any(one.pid is not None for one in setup.engines) else None
