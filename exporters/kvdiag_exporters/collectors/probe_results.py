"""The last results of probes by pair, from the files that `kvdiag probe … --out FILE` appends to."""

import glob
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec
from msgspec import Meta

from kvdiag.model.missing import Missing
from kvdiag.sources.line_follower import LineFollower
from kvdiag_exporters.catalog import Metric, Sample
from kvdiag_exporters.collectors.base import Setup
from kvdiag_exporters.going_on import Gone

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

    def go_on(self, before: "ProbeResultsCollector", gone: Gone) -> None:  # noqa: ARG002
        """Begin where reading ended before a reload; with other patterns all files are read again."""
        if before._patterns == self._patterns:
            self._followers, self._last, self._dropped = before._followers, before._last, before._dropped

    def collect(self) -> Iterator[Sample]:
        """Read what was appended to the files and yield the newest results of each kind of run."""
        missing: list[str] = []
        for path in self._paths(missing):
            follower = self._followers.setdefault(path, LineFollower(path, decode))
            found = follower.read()
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
    schema = _HEAD.decode(line).schema
    if not schema.startswith("kvdiag.probe"):
        raise ValueError("no document of kvdiag probe")
    decoder = _DECODERS.get(schema)
    found = None if decoder is None else decoder.decode(line)
    if found is None or found.ends is None:
        return None
    ends = found.ends
    missed = sum(one.status == "missed" for one in found.judgements) + sum(not one.met for one in found.thresholds)
    return [
        Run(
            (found.host, ends.peer_host, probe, operation, transport, (ends.local_device or "").partition(" ")[0]),
            _epoch_s(found.time),
            dict(sorted(sizes.items())[-MOST_SIZES:]),
            bool(found.failure),
            missed,
        )
        for (probe, operation, transport), sizes in found.sizes().items()
    ]


def _epoch_s(time: str) -> float:
    try:
        return datetime.fromisoformat(time).timestamp()
    except OverflowError as error:
        raise ValueError(f"time {time}: {error}") from None


Found = dict[tuple[str, str, str], dict[int, Size]]
_Whole = Annotated[int, Meta(ge=0)]
_Number = Annotated[float, Meta(ge=0)]


class _Head(msgspec.Struct):
    schema: str = ""


class _Ends(msgspec.Struct):
    peer_host: str
    local_device: str | None = None


class _Judgement(msgspec.Struct):
    status: str


class _Threshold(msgspec.Struct):
    met: bool


class _Value(msgspec.Struct):
    value: _Number


class _Document(msgspec.Struct, kw_only=True):
    host: str
    time: str
    ends: _Ends | None = None
    judgements: tuple[_Judgement, ...] = ()
    thresholds: tuple[_Threshold, ...] = ()
    failure: str | None = None


class _Settings(msgspec.Struct):
    kind: str
    operation: str
    transport: str


class _Latency(msgspec.Struct):
    p50: _Number
    p99: _Number


class _Result(msgspec.Struct):
    size_bytes: _Whole
    bytes_per_second: _Number
    latency_s: _Latency


class _Probe(_Document, kw_only=True):
    settings: _Settings
    results: tuple[_Result, ...]

    def sizes(self) -> Found:
        sizes = {
            one.size_bytes: Size(one.bytes_per_second, one.latency_s.p50, one.latency_s.p99) for one in self.results
        }
        return {(self.settings.kind, self.settings.operation, self.settings.transport): sizes}


class _Method(msgspec.Struct):
    method: str
    size_bytes: _Whole
    bandwidth: _Value
    latency_p50: _Value


class _Compare(_Document, kw_only=True):
    results: tuple[_Method, ...]

    def sizes(self) -> Found:
        found: Found = {}
        for one in self.results:
            transport, _, operation = one.method.partition("-")
            sizes = found.setdefault(("compare", operation, transport), {})
            sizes[one.size_bytes] = Size(one.bandwidth.value, one.latency_p50.value)
        return found


class _Transport(msgspec.Struct):
    transport: str


class _Row(msgspec.Struct):
    operation: str
    pair: tuple[int, int] | None
    mode: str
    bytes: _Whole
    bandwidth: _Value
    total: _Value


class _Layouts(_Document, kw_only=True):
    settings: _Transport
    rows: tuple[_Row, ...]

    def sizes(self) -> Found:
        """Return the rows of all pairs of ranks together where there are any, else those of each pair alone."""
        found: Found = {}
        for one in [one for one in self.rows if one.pair is None] or self.rows:
            sizes = found.setdefault((f"kv {one.mode}", one.operation, self.settings.transport), {})
            sizes[one.bytes] = Size(one.bandwidth.value, one.total.value)
        return found


_HEAD = msgspec.json.Decoder(_Head)
_DECODERS: dict[str, msgspec.json.Decoder[_Probe] | msgspec.json.Decoder[_Compare] | msgspec.json.Decoder[_Layouts]] = {
    "kvdiag.probe/1": msgspec.json.Decoder(_Probe),
    "kvdiag.probe-compare/1": msgspec.json.Decoder(_Compare),
    "kvdiag.probe-kv/1": msgspec.json.Decoder(_Layouts),
}


def create(setup: Setup) -> ProbeResultsCollector | None:
    return ProbeResultsCollector(setup) if setup.probe_results else None
