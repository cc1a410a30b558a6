"""Engine processes with all their children: alive, CPU time, memory, pinned memory and its limit, files, threads."""

import math
from collections.abc import Iterator, Sequence

from kvdiag.model.missing import Missing
from kvdiag.model.process import Process
from kvdiag.sources.process import descendants, read_process
from kvdiag_exporters.catalog import Metric, Sample
from kvdiag_exporters.collectors.base import Engine, Setup

_LABELS = ("node", "engine", "role")
CHILDREN_EVERY_S = 10.0
"""Children are looked for this often only: it takes a file per thread, and engines have hundreds."""


def _gauge(name: str, help_: str, unit: str = "") -> Metric:
    return Metric(name=name, kind="gauge", unit=unit, labels=_LABELS, help=help_)


UP = _gauge("kvdiag_engine_up", "1 while the engine's process lives, 0 once its id is gone or another process's.")
START = _gauge("kvdiag_engine_start_time_seconds", "When the engine's process started, since the epoch.", "seconds")
CPU = Metric(
    name="kvdiag_engine_cpu_seconds_total",
    kind="counter",
    unit="seconds",
    labels=_LABELS,
    help="CPU time of the engine's process and its children.",
)
RESIDENT = _gauge("kvdiag_engine_resident_memory_bytes", "Resident memory, children included.", "bytes")
PINNED = _gauge("kvdiag_engine_pinned_memory_bytes", "Memory pinned by registrations (VmPin), children too.", "bytes")
LOCKED = _gauge("kvdiag_engine_locked_memory_bytes", "Memory locked by mlock (VmLck), children included.", "bytes")
LIMIT = _gauge("kvdiag_engine_memlock_limit_bytes", "Soft limit on locked memory of the engine's process.", "bytes")
PINNED_SHARE = _gauge(
    "kvdiag_engine_pinned_memory_ratio",
    "Share of its limit that the process nearest to it has pinned; at 1 registration fails. Absent without limit.",
    "ratio",
)
FDS = _gauge("kvdiag_engine_open_fds", "Open file descriptors, children included.")
THREADS = _gauge("kvdiag_engine_threads", "Threads, children included.")
PROCESSES = _gauge("kvdiag_engine_processes", "The engine's process and its children.")

METRICS = (UP, START, CPU, RESIDENT, PINNED, LOCKED, LIMIT, PINNED_SHARE, FDS, THREADS, PROCESSES)


class EngineProcessCollector:
    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._started: dict[str, int] = {}
        self._children: dict[str, tuple[float, tuple[int, ...]]] = {}
        self.missing: tuple[str, ...] = ()

    def collect(self) -> Iterator[Sample]:
        """Yield each engine's figures; one whose process is gone has only `kvdiag_engine_up` 0."""
        missing: list[str] = []
        for engine in self._setup.engines:
            if engine.pid is not None:
                yield from self._engine(engine, engine.pid, missing)
        self.missing = tuple(missing)

    def _engine(self, engine: Engine, pid: int, missing: list[str]) -> Iterator[Sample]:
        main = read_process(self._setup.tree, pid)
        if isinstance(main, Missing):
            missing.append(f"engine {engine.name}: {main.missing}")
            yield UP.sample(0.0, *engine.labels)
            return
        if self._started.setdefault(engine.name, main.start_ticks) != main.start_ticks:
            missing.append(f"engine {engine.name}: process {pid} is now another one, {main.name}")
            yield UP.sample(0.0, *engine.labels)
            return
        yield UP.sample(1.0, *engine.labels)
        if not isinstance(main.start_s, Missing):
            yield START.sample(main.start_s, *engine.labels)
        limit = main.memlock_limit_bytes
        if not isinstance(limit, Missing):
            yield LIMIT.sample(math.inf if limit == "unlimited" else limit, *engine.labels)
        processes = self._with_children(engine, main)
        if isinstance(processes, Missing):
            missing.append(f"engine {engine.name}: {processes.missing}")
            return
        yield PROCESSES.sample(float(len(processes)), *engine.labels)
        yield THREADS.sample(float(sum(one.threads for one in processes)), *engine.labels)
        yield CPU.sample(sum(one.cpu_s + one.reaped_cpu_s for one in processes), *engine.labels)
        shares = [share for one in processes if (share := _pinned_share(one)) is not None]
        if shares:
            yield PINNED_SHARE.sample(max(shares), *engine.labels)
        for metric, name in (
            (RESIDENT, "rss_bytes"),
            (PINNED, "pinned_bytes"),
            (LOCKED, "locked_bytes"),
            (FDS, "open_fds"),
        ):
            total = _sum(processes, name)
            if total is not None:
                yield metric.sample(total, *engine.labels)

    def _with_children(self, engine: Engine, main: Process) -> list[Process] | Missing:
        """Return the process and all its children; Missing where one of them cannot be seen: a part is not the sum."""
        now_s = self._setup.clock.monotonic_s()
        read_s, ids = self._children.get(engine.name, (float("-inf"), ()))
        if now_s - read_s >= CHILDREN_EVERY_S:
            found = descendants(self._setup.tree, main.pid)
            if isinstance(found, Missing):
                return found
            ids = found
            self._children[engine.name] = (now_s, ids)
        processes = [main]
        for child in ids:
            one = read_process(self._setup.tree, child)
            if not isinstance(one, Missing):
                processes.append(one)
            elif self._setup.tree.exists(f"/proc/{child}/stat"):
                return one
        return processes


def _pinned_share(one: Process) -> float | None:
    """Return what of its limit a process has pinned; None where it has no limit or hides one of the two.

    The kernel holds each process's pinned pages against its own RLIMIT_MEMLOCK (ib_umem_get).
    """
    limit = one.memlock_limit_bytes
    if isinstance(limit, Missing) or limit == "unlimited" or limit == 0 or isinstance(one.pinned_bytes, Missing):
        return None
    return min(1.0, one.pinned_bytes / limit)


def _sum(processes: Sequence[Process], name: str) -> float | None:
    """Return the sum over the processes; None where one that still runs does not show the value."""
    values = [getattr(one, name) for one in processes if name == "open_fds" or not isinstance(one.rss_bytes, Missing)]
    return None if not values or any(isinstance(one, Missing) for one in values) else float(sum(values))


def create(setup: Setup) -> EngineProcessCollector | None:
    return EngineProcessCollector(setup) if any(one.pid is not None for one in setup.engines) else None
