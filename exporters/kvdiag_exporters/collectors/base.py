"""What a collector is, what it is given, and how all of them are found."""

import importlib
import pkgutil
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import kvdiag_exporters.collectors
from kvdiag.sources._nldev import Channel
from kvdiag.sources.base import Clock, Context
from kvdiag.sources.tree import Tree
from kvdiag_exporters.catalog import Sample
from kvdiag_exporters.precedence import Precedence
from kvdiag_exporters.stream import RecordStream

if TYPE_CHECKING:
    from kvdiag_exporters.records.service import Records
    from kvdiag_exporters.reloading import Reloads


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """One engine to watch: the node it is seen as, its role ("prefill", "decode", "both"), and where it can be read.

    `metrics` are the addresses of Prometheus expositions, each read at most every `metrics_interval_s`; `transfer_csv`
    the folder of TensorRT-LLM's transfer files, `step_records` the file of the vLLM plugin, `logs` the engine's own log
    files.
    """

    name: str
    node: str
    role: str = "both"
    pid: int | None = None
    nixl_telemetry: Path | None = None
    records: Path | None = None
    metrics: tuple[str, ...] = ()
    metrics_interval_s: float = 0.0
    transfer_csv: Path | None = None
    step_records: Path | None = None
    logs: tuple[Path, ...] = ()

    @property
    def labels(self) -> tuple[str, str, str]:
        """`node`, `engine`, `role`: the labels that every series of an engine begins with."""
        return self.node, self.name, self.role


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """Everything that a collector may use: this host's node name, the engines, the roots and the clock.

    `netlink` is a recorded conversation in place of the running kernel's; `records` joins what spans, logs and step
    records tell, where any of them is configured; `kernel_timing` allows to set probes in the kernel,
    `queue_pair_counters` asks for those of single queue pairs;
    `probe_results` are the files, or patterns of them, that probes append to; `precedence` lets scrapes go first;
    `reloads` says how the last one went.
    """

    node: str
    engines: tuple[Engine, ...] = ()
    context: Context = field(default_factory=Context)
    stream: RecordStream = field(default_factory=RecordStream)
    netlink: Channel | None = None
    records: "Records | None" = None
    kernel_timing: bool = False
    queue_pair_counters: bool = False
    probe_results: tuple[str, ...] = ()
    precedence: Precedence = field(default_factory=Precedence)
    reloads: "Reloads | None" = None

    @property
    def clock(self) -> Clock:
        return self.context.clock

    @property
    def tree(self) -> Tree:
        return Tree.of(self.context)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a collector's last collection went; `error` is empty where it worked, `good_s` the monotonic time of the
    last one that did.
    """

    duration_s: float
    error: str = ""
    missing: tuple[str, ...] = ()
    good_s: float | None = None


class Collector(Protocol):
    """`collect` returns the samples of one instant; it may raise, and then only its own are missing.

    After it, `missing` says in one line each what could not be observed (a folder that is not there, no permission).
    One that holds something that outlives the process has a `close` as well.
    """

    missing: tuple[str, ...]

    def collect(self) -> Iterable[Sample]: ...


def create_all(setup: Setup) -> dict[str, Collector]:
    """Return every collector that has something to do in this setup, by the name of its file, in order."""
    found: dict[str, Collector] = {}
    for module_info in sorted(pkgutil.iter_modules(kvdiag_exporters.collectors.__path__), key=lambda info: info.name):
        module = importlib.import_module(f"kvdiag_exporters.collectors.{module_info.name}")
        create = getattr(module, "create", None)
        collector = None if create is None else create(setup)
        if collector is not None:
            found[module_info.name] = collector
    return found
