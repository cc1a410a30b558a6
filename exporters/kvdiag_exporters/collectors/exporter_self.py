"""The exporter itself: what each collection cost and whether it worked, and the process's own CPU time and memory."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import kvdiag
from kvdiag.model.missing import Missing
from kvdiag.sources.process import read_process
from kvdiag.sources.tree import Tree
from kvdiag_exporters.catalog import Metric, Sample
from kvdiag_exporters.collectors.base import Outcome, Setup

_COLLECTOR = ("collector",)

BUILD = Metric(name="kvdiag_exporter_build_info", kind="gauge", labels=("version",), help="1, with the version.")
CPU = Metric(
    name="kvdiag_exporter_cpu_seconds_total", kind="counter", unit="seconds", help="CPU time of the exporter itself."
)
RESIDENT = Metric(
    name="kvdiag_exporter_resident_memory_bytes", kind="gauge", unit="bytes", help="Resident memory of the exporter."
)
DURATION = Metric(
    name="kvdiag_collector_duration_seconds",
    kind="gauge",
    unit="seconds",
    labels=_COLLECTOR,
    help="How long the last collection took.",
)
SUCCESS = Metric(
    name="kvdiag_collector_success", kind="gauge", labels=_COLLECTOR, help="1 where the last collection worked, else 0."
)
AGE = Metric(
    name="kvdiag_collector_data_age_seconds",
    kind="gauge",
    unit="seconds",
    labels=_COLLECTOR,
    help="How old the collector's last complete data is; absent until there is some.",
)
MISSING = Metric(
    name="kvdiag_collector_missing",
    kind="gauge",
    labels=_COLLECTOR,
    help="How many things the last collection could not observe; /healthz names them.",
)

LOST = Metric(
    name="kvdiag_recorder_lost_lines_total",
    kind="counter",
    help="Lines of the trace bundle that could not be written, because the disk is full or gone.",
)

RELOADED = Metric(
    name="kvdiag_exporter_config_last_reload_success",
    kind="gauge",
    help="1 where the last SIGHUP took up the configuration; 0 where it could not, and the one before goes on.",
)
RELOAD_TIME = Metric(
    name="kvdiag_exporter_config_last_reload_success_timestamp_seconds",
    kind="gauge",
    unit="seconds",
    help="When the configuration that is served was taken up, since the epoch.",
)

METRICS = (RELOADED, RELOAD_TIME, LOST, BUILD, CPU, RESIDENT, DURATION, SUCCESS, AGE, MISSING)


class ExporterSelfCollector:
    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self.missing: tuple[str, ...] = ()

    def collect(self) -> Iterator[Sample]:
        yield BUILD.sample(1.0, kvdiag.__version__)
        reloads = self._setup.reloads
        if reloads is not None:
            yield RELOADED.sample(float(reloads.successful))
            if reloads.time_s is not None:
                yield RELOAD_TIME.sample(reloads.time_s)
        yield LOST.sample(float(self._setup.stream.lost_lines))
        # Below another root process ids may be those of another pid namespace; its own is always right for itself.
        tree = Tree(Path("/")) if self._setup.context.live else self._setup.tree
        process = read_process(tree, os.getpid())
        if isinstance(process, Missing):
            self.missing = (process.missing,)
            return
        self.missing = ()
        yield CPU.sample(process.cpu_s)
        if not isinstance(process.rss_bytes, Missing):
            yield RESIDENT.sample(float(process.rss_bytes))


def outcome_samples(outcomes: Mapping[str, Outcome], now_s: float) -> Iterator[Sample]:
    """Yield duration, success and age of each collector's last collection; `now_s` is the monotonic time of asking."""
    for name, outcome in outcomes.items():
        yield DURATION.sample(outcome.duration_s, name)
        yield SUCCESS.sample(float(outcome.error == ""), name)
        yield MISSING.sample(float(len(outcome.missing)), name)
        if outcome.good_s is not None:
            yield AGE.sample(max(0.0, now_s - outcome.good_s), name)


def create(setup: Setup) -> ExporterSelfCollector:
    return ExporterSelfCollector(setup)
