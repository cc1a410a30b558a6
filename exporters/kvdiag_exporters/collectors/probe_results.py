"""The last results of probes by pair, from the files that `kvdiag probe … --out FILE` appends to."""

import glob
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from kvdiag.model.missing import Missing
from kvdiag.sources.line_follower import LineFollower
from kvdiag_exporters.catalog import Metric, Sample
from kvdiag_exporters.collectors.base import Setup

MOST_FILES = 64
MOST_RUNS = 256
"""Kinds of run (pair, probe, operation, transport, device) that are shown: those with the newest results."""
MOST_SIZES = 32

_RUN = ("node", "peer", "probe", "operation", "transport", "device")


def _gauge(name: str, help_: str, unit: str, *labels: str) -> Metric:
    return Metric(name=f"kvdiag_probe_{name}", kind="gauge", unit=unit, labels=(*_RUN, *labels), help=help_)


BANDWIDTH = _gauge("bandwidth_bytes_per_second", "Mean bandwidth of the last probe, by message size.", "", "size")
LATENCY_P50 = _gauge("latency_p50_seconds", "Median time of one message of the last probe.", "seconds", "size")
LATENCY_P99 = _gauge(
    "latency_p99_seconds", "Time that 99 of 100 messages of the last probe took no longer than.", "seconds", "size"
)
TIMESTAMP = _gauge("timestamp_seconds", "When the last probe ran, in seconds of the epoch.", "seconds")
FAILED = _gauge("failed", "1 where the last probe ended in an error, else 0; what it measured before is shown.", "")
MISSED = _gauge("missed_limits", "Limits and baselines that the last probe missed.", "")
RUNS = Metric(
    name="kvdiag_probe_runs_read_total",
    kind="counter",
    help="Runs read from the probes' files since the exporter started.",
)
INVALID = Metric(
    name="kvdiag_probe_invalid_lines_total", kind="counter", help="Lines of those files that are no probe's document."
)

METRICS = (BANDWIDTH, LATENCY_P50, LATENCY_P99, TIMESTAMP, FAILED, MISSED, RUNS, INVALID)
Labels = tuple[str, str, str, str, str, str]


class Size(NamedTuple):
    """Results for one message size; None is "not measured"."""

    bandwidth: float | None = None
    p50_s: float | None = None
    p99_s: float | None = None


class Run(NamedTuple):
    """One kind of run in one document."""

    labels: Labels
    time_s: float
    sizes: dict[int, Size]
    failed: bool
    missed: int


class ProbeResultsCollector:
    def __init__(self, setup: Setup) -> None:
        self._patterns = setup.probe_results
        self._followers: dict[Path, LineFollower[list[Run]]] = {}
        self._last: dict[Labels, Run] = {}
        self._dropped = 0
        self.missing: tuple[str, ...] = ()

    def collect(self) -> Iterator[Sample]:
        """Read what was appended to the files and yield the newest results of each kind of run."""
        missing: list[str] = []
        for path in self._paths(missing):
            follower = self._followers.setdefault(path, LineFollower(path, decode))
            try:
                found = follower.read()
            except OSError as error:
                found = Missing(f"{path}: {error.strerror}")
            if isinstance(found, Missing):
                missing.append(found.missing)
                continue
            for run in (one for runs in found for one in runs):
                self._take(run)
        missing += [one.last_error for one in self._followers.values() if one.last_error]
        if self._dropped:
            missing.append(f"only the newest {MOST_RUNS} kinds of probe run are shown; {self._dropped} were left out")
        self.missing = tuple(missing)
        yield RUNS.sample(float(sum(one.records for one in self._followers.values())))
        yield INVALID.sample(float(sum(one.invalid for one in self._followers.values())))
        for run in self._last.values():
            yield TIMESTAMP.sample(run.time_s, *run.labels)
            yield FAILED.sample(float(run.failed), *run.labels)
            yield MISSED.sample(float(run.missed), *run.labels)
            for size, result in run.sizes.items():
                for metric, value in zip((BANDWIDTH, LATENCY_P50, LATENCY_P99), result, strict=True):
                    if value is not None:
                        yield metric.sample(value, *run.labels, str(size))

    def _paths(self, missing: list[str]) -> list[Path]:
        found: dict[Path, None] = {}
        for pattern in self._patterns:
            matched = sorted(glob.glob(pattern))  # noqa: PTH207  (a pattern may be absolute)
            if not matched:
                missing.append(f"{pattern}: no such file yet; kvdiag probe … --out writes it")
            found |= dict.fromkeys(Path(one) for one in matched)
        if len(found) > MOST_FILES:
            missing.append(f"probe_results: only {MOST_FILES} of {len(found)} files are read")
        return list(found)[:MOST_FILES]

    def _take(self, run: Run) -> None:
        before = self._last.get(run.labels)
        if before is not None and before.time_s > run.time_s:
            return
        self._last[run.labels] = run
        if len(self._last) > MOST_RUNS:
            oldest = min(self._last.values(), key=lambda one: one.time_s)
            del self._last[oldest.labels]
            self._dropped += 1


def decode(line: bytes) -> list[Run] | None:
    """Return the runs in one document; None where it is of a probe that moves nothing between two hosts.

    ValueError or msgspec's errors where the line is no probe's document.
    """
    document = msgspec.json.decode(line)
    if not isinstance(document, dict) or not str(document.get("schema", "")).startswith("kvdiag.probe"):
        raise ValueError("no document of kvdiag probe")
    read = {"kvdiag.probe/1": _sizes, "kvdiag.probe-compare/1": _methods, "kvdiag.probe-kv/1": _layouts}.get(
        document["schema"]
    )
    ends = document.get("ends")
    if read is None or not isinstance(ends, dict):
        return None
    try:
        device = str(ends.get("local_device") or "").partition(" ")[0]
        time_s = datetime.fromisoformat(document["time"]).timestamp()
        missed = sum(one["status"] == "missed" for one in document.get("judgements") or ())
        missed += sum(not one["met"] for one in document.get("thresholds") or ())
        return [
            Run(
                (str(document["host"]), str(ends["peer_host"]), probe, operation, transport, device),
                time_s,
                dict(sorted(sizes.items())[-MOST_SIZES:]),
                bool(document.get("failure")),
                missed,
            )
            for (probe, operation, transport), sizes in read(document).items()
        ]
    except (KeyError, TypeError, AttributeError, OverflowError) as error:
        raise ValueError(f"{document['schema']} without what it should have: {error!r}") from None


Found = dict[tuple[str, str, str], dict[int, Size]]


def _sizes(document: Mapping[str, Any]) -> Found:
    settings = document["settings"]
    sizes = {
        int(one["size_bytes"]): Size(
            float(one["bytes_per_second"]), float(one["latency_s"]["p50"]), float(one["latency_s"]["p99"])
        )
        for one in document["results"]
    }
    return {(settings["kind"], settings["operation"], settings["transport"]): sizes}


def _methods(document: Mapping[str, Any]) -> Found:
    found: Found = {}
    for one in document["results"]:
        transport, _, operation = one["method"].partition("-")
        sizes = found.setdefault(("compare", operation, transport), {})
        sizes[int(one["size_bytes"])] = Size(float(one["bandwidth"]["value"]), float(one["latency_p50"]["value"]))
    return found


def _layouts(document: Mapping[str, Any]) -> Found:
    """Return the rows of all pairs of ranks together where there are any, else those of each pair alone."""
    found: Found = {}
    together = [one for one in document["rows"] if one["pair"] is None]
    for one in together or document["rows"]:
        sizes = found.setdefault((f"kv {one['mode']}", one["operation"], document["settings"]["transport"]), {})
        sizes[int(one["bytes"])] = Size(float(one["bandwidth"]["value"]), float(one["total"]["value"]))
    return found


def create(setup: Setup) -> ProbeResultsCollector | None:
    return ProbeResultsCollector(setup) if setup.probe_results else None
