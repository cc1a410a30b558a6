"""Writes a trace bundle while it is collected: whole lines, appended, so that a crash loses at most the last one."""

import logging
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

import kvdiag
from kvdiag.errors import InputError
from kvdiag.model.bundle import BundleEvent
from kvdiag.model.transfer import TransferRecord
from kvdiag_exporters import events
from kvdiag_exporters.catalog import Buckets, Recorded, Sample
from kvdiag_exporters.collectors.base import Engine
from kvdiag_exporters.scraper import Collection
from kvdiag_exporters.stream import RecordStream

_log = logging.getLogger(__name__)
SCHEMA = "kvdiag.bundle/1"


class Recorder:
    """Appends to the bundle in a folder; what an earlier run left there is kept, and its requests are not repeated.

    A disk that is full or gone never stops the exporter: what could not be written is counted in `stream.lost_lines`.
    """

    def __init__(
        self,
        folder: Path,
        node: str,
        engines: Sequence[Engine],
        stream: RecordStream,
        interval_s: float,
        incident_start_s: float | None = None,
    ) -> None:
        self._stream = stream
        self._folder = folder
        self._engines = {engine.name: engine.node for engine in engines}
        self._roles = _roles(engines) or {node: "both"}
        self._before: events.Values = {}
        self._metrics: dict[str, dict[str, str]] = {}
        self._incident_start_s = incident_start_s
        self._interval_s = interval_s
        self._created = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._requests = _Lines(folder / "requests.jsonl")
            self._counters = _Lines(folder / "counters.jsonl")
            self._events = _Lines(folder / "events.jsonl")
            for request_id in _request_ids(folder / "requests.jsonl"):
                stream.remember(request_id)
            self._write_meta()
        except OSError as error:
            raise InputError(f"recorder.path: {error.filename or folder}: {error.strerror}") from None
        stream.add_sink(self.write_records)

    def write_records(self, records: Sequence[TransferRecord]) -> None:
        """Append requests; columns that were not observed, and values no clock can give, are left out."""
        rows = ({key: value for key, value in _fields(record) if _possible(value)} for record in records)
        self._append(self._requests, rows)

    def write(self, collection: Collection) -> None:
        """Append the counters of a collection, and the events since the one before."""
        self._append(self._counters, self._counter_rows(collection))
        after = events.values(collection.samples)
        found = events.differences(self._before, after, collection.time_s)
        rows = [{key: value for key, value in _fields(event) if value is not None} for event in found]
        self._append(self._events, (row for row in rows if row.get("node") in self._roles))
        self._before = after

    def close(self) -> None:
        """Close the files and write meta.json a last time."""
        for finish in (self._requests.close, self._counters.close, self._events.close, self._write_meta):
            try:
                finish()
            except OSError as error:
                _log.error("%s: %s", error.filename or self._folder, error.strerror)

    def _counter_rows(self, collection: Collection) -> Iterator[dict[str, Any]]:
        known = len(self._metrics)
        sums: dict[tuple[str, str | None, str], float] = {}
        for sample, recorded, node in _chosen(collection.samples, self._engines, self._roles):
            labels = dict(zip(sample.metric.labels, sample.labels, strict=True))
            device = "/".join(labels[name] for name in ("device", "port") if name in labels) or None
            key = (node, device, recorded.name)
            sums[key] = sums.get(key, 0.0) + _number(sample.value, recorded) * recorded.scale
            kind = "gauge" if sample.metric.kind == "gauge" else "counter"
            self._metrics.setdefault(recorded.name, {"kind": kind, "unit": recorded.unit})
        if len(self._metrics) != known:
            self._write_meta()
        for (node, device, name), value in sums.items():
            yield {"time_s": collection.time_s, "node": node, "device": device, "metric": name, "value": value}

    def _append(self, lines: "_Lines", rows: Iterator[dict[str, Any]]) -> None:
        count = 0
        try:
            encoded = [msgspec.json.encode(row) for row in rows]
            count = len(encoded)
            lines.append(encoded)
        except OSError as error:
            self._stream.lost_lines += count
            _log.error("%s: %s; %d lines lost so far", lines.path, error.strerror, self._stream.lost_lines)

    def _write_meta(self) -> None:
        document = {
            "schema": SCHEMA,
            "created": self._created,
            "source": {"program": "kvdiag exporter", "version": kvdiag.__version__, "interval_s": self._interval_s},
            "nodes": {name: {"role": role} for name, role in self._roles.items()},
            "metrics": self._metrics,
            "sampling": 1,
            "incident_start_s": self._incident_start_s,
        }
        path = self._folder / "meta.json"
        beside = path.with_suffix(".json.new")
        beside.write_bytes(msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n")
        beside.replace(path)


class _Lines:
    """A file of lines: a part of a line that a crash left at its end is cut off, then only whole lines are added."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._size = _end_of_last_line(self._file)
        os.ftruncate(self._file, self._size)

    def append(self, rows: list[bytes]) -> None:
        """Write all rows; OSError where that fails, and then none of them is left in the file."""
        data = b"".join(row + b"\n" for row in rows)
        try:
            written = 0
            while written < len(data):
                written += os.write(self._file, data[written:])
        except OSError:
            os.ftruncate(self._file, self._size)
            raise
        self._size += len(data)

    def close(self) -> None:
        # No fsync: on a busy disk it takes longer than a process may take to end, and only a power failure needs it.
        file, self._file = self._file, -1
        os.close(file)


def _end_of_last_line(file: int) -> int:
    end = os.fstat(file).st_size
    while end > 0:
        start = max(0, end - 65536)
        newline = os.pread(file, end - start, start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        end = start
    return 0


def _request_ids(path: Path) -> Iterator[str]:
    class Row(msgspec.Struct):
        request_id: str

    decoder = msgspec.json.Decoder(Row)
    with path.open("rb") as file:
        for line in file:
            try:
                yield decoder.decode(line).request_id
            except msgspec.MsgspecError:
                continue


def _roles(engines: Sequence[Engine]) -> dict[str, str]:
    """Return each node's role: that of its engines, "both" where they differ."""
    roles: dict[str, str] = {}
    for engine in engines:
        roles[engine.node] = engine.role if roles.get(engine.node, engine.role) == engine.role else "both"
    return roles


def _chosen(
    samples: Sequence[Sample], engines: Mapping[str, str], nodes: Mapping[str, str]
) -> Iterator[tuple[Sample, Recorded, str]]:
    """Yield what is recorded of the samples, each with its node; see Recorded for what stands back."""
    found: list[tuple[Sample, Recorded, str, str]] = []
    has: set[tuple[str, str]] = set()
    for sample in samples:
        labels = dict(zip(sample.metric.labels, sample.labels, strict=True))
        engine = labels.get("engine", "")
        node = engines.get(engine, labels.get("node", ""))
        if node in nodes:
            has.add((node, sample.metric.name))
            found += [(sample, recorded, node, engine) for recorded in sample.metric.recorded]
    primary = {(node, recorded.name) for _, recorded, node, _ in found if not recorded.fallback}
    # A node whose engine lives in a network namespace of its own is that namespace, not the host around it.
    inside = {(node, recorded.name) for _, recorded, node, engine in found if engine}
    for sample, recorded, node, engine in found:
        key = (node, recorded.name)
        if recorded.fallback and key in primary:
            continue
        if recorded.only_with and (node, recorded.only_with) not in has:
            continue
        if engine == "" and "engine" in sample.metric.labels and key in inside:
            continue
        yield sample, recorded, node


def _number(value: float | Buckets, recorded: Recorded) -> float:
    if isinstance(value, Buckets):
        return value.sum if recorded.part == "sum" else float(sum(value.counts))
    return value


def _possible(value: object) -> bool:
    return value is not None and not (isinstance(value, int | float) and (value < 0 or not math.isfinite(value)))


def _fields(row: TransferRecord | BundleEvent) -> Iterator[tuple[str, Any]]:
    return ((name, getattr(row, name)) for name in row.__dataclass_fields__)
