"""Engines' own metrics (vLLM, SGLang, Dynamo, NIXL, Mooncake, LMCache, TensorRT-LLM) as one set of names and units."""

import threading
from collections.abc import Iterator, Sequence

from kvdiag_exporters.catalog import Metric, Sample
from kvdiag_exporters.collectors.base import Engine, Setup
from kvdiag_exporters.engines.fetch import fetch
from kvdiag_exporters.engines.metrics import BY_NAME
from kvdiag_exporters.engines.normalise import Normalised, normalise

TIMEOUT_S = 3.0
"""How long an engine may take to answer: below the scraper's own limit, so that a slow one hides no other."""

LATE_S = 1.0
"""How long a collection waits for one that did not answer in time, until it does: others are not to be read less often
for it.
"""

_TARGET = ("node", "engine", "role", "target")

UP = Metric(
    name="kvdiag_engine_metrics_up",
    kind="gauge",
    labels=_TARGET,
    help="1 where the engine's metrics were read and understood, else 0; /healthz says why.",
)
DURATION = Metric(
    name="kvdiag_engine_metrics_read_seconds",
    kind="gauge",
    unit="seconds",
    labels=_TARGET,
    help="Time that reading the engine's metrics took.",
)
UNMAPPED = Metric(
    name="kvdiag_engine_unmapped_names",
    kind="gauge",
    labels=("node", "engine", "role", "source"),
    help="Names of a known source that no name map explains: a version newer than this exporter; /healthz names them.",
)
BROKEN = Metric(
    name="kvdiag_engine_broken_series",
    kind="gauge",
    labels=_TARGET,
    help="Series left off because they contradict themselves or are of another type than known.",
)

METRICS = (*BY_NAME.values(), UP, DURATION, UNMAPPED, BROKEN)


class EngineMetricsCollector:
    def __init__(self, setup: Setup, timeout_s: float = TIMEOUT_S) -> None:
        self._setup = setup
        self._timeout_s = timeout_s
        self._targets = [_Target(setup, engine, url, timeout_s) for engine in setup.engines for url in engine.metrics]
        self.missing: tuple[str, ...] = ()

    def collect(self) -> Iterator[Sample]:
        """Ask every engine at once and yield what answered in time; one that did not is down, and hides no other."""
        for target in self._targets:
            target.start()
        end_s = self._setup.clock.monotonic_s() + self._timeout_s
        missing: list[str] = []
        unmapped: dict[tuple[str, str, str, str], set[str]] = {}
        seen: set[tuple[str, tuple[str, ...]]] = set()
        for target in self._targets:
            labels = (*target.engine.labels, target.label)
            found = target.result(max(0.0, end_s - self._setup.clock.monotonic_s()))
            if isinstance(found, str):
                missing.append(f"engine {target.engine.name}: {target.label}: {found}")
                yield UP.sample(0.0, *labels)
                continue
            yield UP.sample(1.0, *labels)
            yield DURATION.sample(target.duration_s, *labels)
            yield BROKEN.sample(float(len(found.broken)), *labels)
            missing += [f"engine {target.engine.name}: {target.label}: {one}" for one in found.broken[:3]]
            for source in found.sources:
                unmapped.setdefault((*target.engine.labels, source), set()).update(found.unmapped.get(source, ()))
            for sample in found.samples:  # two addresses of one engine may show the same
                if (key := (sample.metric.name, sample.labels)) not in seen:
                    seen.add(key)
                    yield sample
        for head, names in unmapped.items():
            yield UNMAPPED.sample(float(len(names)), *head)
            if names:
                missing.append(f"engine {head[1]}: {head[3]} names that no map explains: {_some(sorted(names))}")
        self.missing = tuple(missing)


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


class _Target:
    """One address of one engine. A thread per reading: one that hangs is waited for no longer than the limit."""

    def __init__(self, setup: Setup, engine: Engine, url: str, timeout_s: float) -> None:
        self.engine = engine
        self.label = url
        self.duration_s = 0.0
        self._clock = setup.clock
        self._timeout_s = timeout_s
        self._started_s = float("-inf")
        self._thread: threading.Thread | None = None
        self._result: Normalised | str = ""
        self._late = False

    def start(self) -> None:
        """Begin a reading, unless the last one still runs or is younger than the engine's interval."""
        now_s = self._clock.monotonic_s()
        if self._thread is not None and now_s - self._started_s < self.engine.metrics_interval_s:
            return
        if self._thread is None or not self._thread.is_alive():
            self._started_s = now_s
            self._result = ""
            self._thread = threading.Thread(target=self._read, name=f"engine-{self.engine.name}", daemon=True)
            self._thread.start()

    def result(self, within_s: float) -> Normalised | str:
        """Return what was read, or why nothing was."""
        assert self._thread is not None
        self._thread.join(min(within_s, LATE_S) if self._late else within_s)
        if self._thread.is_alive():
            self._late = True
            return f"no complete answer within {self._timeout_s:g} s"
        return self._result

    def _read(self) -> None:
        start_s = self._clock.monotonic_s()
        try:
            found = normalise(fetch(self.label, self._timeout_s), self.engine.labels)
        except (OSError, ValueError) as error:
            self._result = str(error)
            return
        self.duration_s = self._clock.monotonic_s() - start_s
        self._late = False
        if found.sources:
            self._result = found
        else:
            self._result = "metrics of no known engine or library; give the address of one that serves its own"


def create(setup: Setup) -> EngineMetricsCollector | None:
    return EngineMetricsCollector(setup) if any(one.metrics for one in setup.engines) else None
