"""Writes a trace bundle while it is collected: whole lines, appended, so that a crash loses at most the last one."""

import errno
import logging
import math
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

import kvdiag
from kvdiag.errors import InputError
from kvdiag.model.bundle import BundleEvent
from kvdiag.model.transfer import TransferRecord
from kvdiag_exporters import events
from kvdiag_exporters.bundle_folder import SCHEMA, BundleFolder
from kvdiag_exporters.catalog import Buckets, Recorded, Sample
from kvdiag_exporters.collectors.base import Engine
from kvdiag_exporters.scraper import Collection
from kvdiag_exporters.stream import RecordStream

_log = logging.getLogger(__name__)
_FOLDER = "."
_FULL = {errno.ENOSPC, errno.EDQUOT}


class Recorder:
    """Appends to the bundle in a folder; what an earlier run left there is kept, and its requests are not repeated.

    A disk that is full (also from the start) or gone never stops the exporter: what could not be written, or was
    written and then removed, is counted in `stream.lost_lines`; it is logged when that begins and when it ends.

    `attach` False: whoever makes it gives it the records. `after` is the recorder of the bundle before this one, whose
    last collection the first events are told from.
    """

    def __init__(
        self,
        folder: Path,
        node: str,
        engines: Sequence[Engine],
        stream: RecordStream,
        interval_s: float,
        incident_start_s: float | None = None,
        *,
        attach: bool = True,
        after: "Recorder | None" = None,
    ) -> None:
        self._stream = stream
        self._engines = {engine.name: engine.node for engine in engines}
        self._roles = roles_of(engines) or {node: "both"}
        self._before: events.Values = {} if after is None else after._before
        self._interval_s = interval_s
        self._writing = threading.RLock()
        self._problems: dict[str, str] = {}
        self._gone = ""
        self._closed = False
        self._lost_before = stream.lost_lines
        try:
            self._bundle = BundleFolder(folder)
            found = self._bundle.meta
            self._metrics = dict(found.metrics)
            self._lost_before -= found.lost_lines
            self._incident_start_s = found.incident_start_s if incident_start_s is None else incident_start_s
            self._nodes = found.nodes | {name: {"role": role} for name, role in self._roles.items()}
            try:
                for request_id in self._bundle.request_ids():
                    stream.remember(request_id)
                self._begin(waits=after is None)
            except BaseException:
                self._bundle.discard()
                raise
        except OSError as error:
            raise InputError(f"recorder.path: {error.filename or folder}: {error.strerror}") from None
        except InputError as error:
            raise InputError(f"recorder.path: {error}") from None
        if attach:
            stream.add_sink(self.write_records)

    def _begin(self, *, waits: bool) -> None:
        """Write meta.json; with `waits` a full disk is waited for, and what comes before there is room is lost."""
        try:
            self._bundle.write_meta(self._meta())
        except OSError as error:
            if not waits or error.errno not in _FULL:
                raise
            self._try("meta.json", lambda: self._bundle.write_meta(self._meta()), 0)

    @property
    def problem(self) -> str:
        """Why what is observed is not being recorded now; empty where it is."""
        return next(iter(self._problems.values()), "")

    def status(self) -> dict[str, Any]:
        """Return where it records, whether that works now, and how many lines were lost so far."""
        problem = self.problem
        return {
            "path": str(self._bundle.path),
            "recording": problem == "",
            "problem": problem,
            "lost_lines": self._stream.lost_lines,
        }

    def describe(self) -> str:
        """Return in a few words where it records, what it continues, and what it cut off there."""
        bundle = self._bundle
        text = f"recording into {bundle.path}, "
        text += "a new bundle" if not bundle.continued else f"continuing a bundle with {bundle.requests} requests"
        text += "".join(f"; dropped the cut-off last line of {name}" for name in bundle.cut)
        return f"{text}; not yet: {self.problem}" if self.problem else text

    def write_records(self, records: Sequence[TransferRecord]) -> None:
        """Append requests; columns that were not observed, and values no clock can give, are left out."""
        rows = ({key: value for key, value in _fields(record) if _possible(value)} for record in records)
        self._append("requests.jsonl", rows)

    def write(self, collection: Collection) -> None:
        """Append the counters of a collection, and the events since the one before."""
        known = len(self._metrics)
        rows = list(self._counter_rows(collection))
        self._append("counters.jsonl", rows)
        if len(self._metrics) != known or "meta.json" in self._problems:
            self._write_meta()
        after = events.values(collection.samples)
        found = events.differences(self._before, after, collection.time_s)
        changes = [{key: value for key, value in _fields(event) if value is not None} for event in found]
        self._append("events.jsonl", (row for row in changes if row.get("node") in self._roles))
        self._before = after

    def close(self) -> None:
        """Write meta.json a last time and close the files."""
        with self._writing:
            if not self._closed:
                self._write_meta()
                self._closed = True
                if not (self._bundle.path / "meta.json").exists():  # it was never begun
                    self._bundle.discard()
                self._bundle.close()

    def _counter_rows(self, collection: Collection) -> Iterator[dict[str, Any]]:
        sums: dict[tuple[str, str | None, str], float] = {}
        for sample, recorded, node in chosen(collection.samples, self._engines, self._roles):
            labels = dict(zip(sample.metric.labels, sample.labels, strict=True))
            device = "/".join(labels[name] for name in ("device", "port") if name in labels) or None
            key = (node, device, recorded.name)
            sums[key] = sums.get(key, 0.0) + number(sample.value, recorded) * recorded.scale
            kind = "gauge" if sample.metric.kind == "gauge" else "counter"
            self._metrics.setdefault(recorded.name, {"kind": kind, "unit": recorded.unit})
        for (node, device, name), value in sums.items():
            yield {"time_s": collection.time_s, "node": node, "device": device, "metric": name, "value": value}

    def _append(self, name: str, rows: Iterable[dict[str, Any]]) -> None:
        encoded = [msgspec.json.encode(row) for row in rows]
        with self._writing:
            if self._ready(len(encoded)) and encoded:
                self._try(name, lambda: self._bundle.append(name, encoded), len(encoded))

    def _write_meta(self) -> None:
        with self._writing:
            if self._ready(0):
                self._try("meta.json", lambda: self._bundle.write_meta(self._meta()), 0)

    def _ready(self, lines: int) -> bool:
        """Begin the bundle anew where it was removed or moved away; where that fails, that many lines are lost."""
        return not self._closed and self._try(_FOLDER, self._go_on_where_removed, lines)

    def _go_on_where_removed(self) -> None:
        gone = self._bundle.abandon()
        if gone is not None:
            self._gone, lost = gone
            self._stream.lost_lines += lost
        if not self._bundle.is_open:
            self._bundle.reopen()
            if _FOLDER not in self._problems:
                _log.warning("%s; %s; recording into it anew", self._gone, self._lost())

    def _try(self, name: str, action: Callable[[], None], lines: int) -> bool:
        """Do it and return whether it worked; log where the first problem begins and where the last one ends."""
        try:
            action()
        except (OSError, InputError) as error:
            self._stream.lost_lines += lines
            text = str(error)
            if isinstance(error, OSError):
                text = f"{error.filename or self._bundle.path / name}: {error.strerror}"
            if name == _FOLDER and self._gone:
                text = f"{self._gone}, and cannot be made again: {text}"
            if not self._problems:
                _log.error("%s; %s; not repeated until it is over", text, self._lost())
            self._problems[name] = text
            return False
        if self._problems.pop(name, None) is not None and not self._problems:
            _log.warning("%s: recording again; %s", self._bundle.path, self._lost())
        return True

    def _lost(self) -> str:
        return f"{self._stream.lost_lines} lines lost so far"

    def _meta(self) -> dict[str, Any]:
        lost = self._stream.lost_lines - self._lost_before
        return {
            "schema": SCHEMA,
            "created": self._bundle.meta.created,
            "source": {
                "program": "kvdiag exporter",
                "version": kvdiag.__version__,
                "interval_s": self._interval_s,
                **({"lost_lines": lost} if lost else {}),
            },
            "nodes": self._nodes,
            "metrics": self._metrics,
            "sampling": 1,
            "incident_start_s": self._incident_start_s,
        }


def roles_of(engines: Sequence[Engine]) -> dict[str, str]:
    """Return each node's role: that of its engines, "both" where they differ."""
    roles: dict[str, str] = {}
    for engine in engines:
        roles[engine.node] = engine.role if roles.get(engine.node, engine.role) == engine.role else "both"
    return roles


def unseen(engines: Sequence[Engine], node: str) -> Iterator[str]:
    """Yield a line for each engine of another node than the exporter's whose process is not named."""
    for one in engines:
        if one.node != node and one.pid is None:
            yield (
                f"no counters of NICs and host are recorded for {one.name}: its node is {one.node!r}, the exporter's "
                f"{node!r}, and no pid says that it runs here; give its pid, or the same node, or record beside it"
            )


def chosen(
    samples: Sequence[Sample], engines: Mapping[str, str], nodes: Mapping[str, str]
) -> Iterator[tuple[Sample, Recorded, str]]:
    """Yield what is recorded of the samples, each with its node; see Recorded for what stands back.

    `engines` gives the nodes by the engines' names, `nodes` the recorded nodes with their roles.
    """
    found: list[tuple[Sample, Recorded, str, str]] = []
    has: set[tuple[str, str]] = set()
    for sample in samples:
        labels = dict(zip(sample.metric.labels, sample.labels, strict=True))
        engine = labels.get("engine", "")
        node = engines.get(engine, labels.get("node", ""))
        if node in nodes:
            has.add((node, sample.metric.name))
            found += [
                (sample, recorded, node, engine)
                for recorded in sample.metric.recorded
                if all(labels[name] in values for name, values in recorded.where)
            ]
    first: dict[tuple[str, str], int] = {}
    for _, recorded, node, _ in found:
        first[node, recorded.name] = min(recorded.fallback, first.get((node, recorded.name), recorded.fallback))
    # A node whose engine lives in a network namespace of its own is that namespace, not the host around it.
    inside = {(node, recorded.name) for _, recorded, node, engine in found if engine}
    for sample, recorded, node, engine in found:
        key = (node, recorded.name)
        if recorded.fallback > first[key]:
            continue
        if recorded.only_with and (node, recorded.only_with) not in has:
            continue
        if engine == "" and "engine" in sample.metric.labels and key in inside:
            continue
        yield sample, recorded, node


def number(value: float | Buckets, recorded: Recorded) -> float:
    """Return the number that is recorded of a value, in the metric's own unit."""
    if isinstance(value, Buckets):
        return value.sum if recorded.part == "sum" else float(sum(value.counts))
    return value


def _possible(value: object) -> bool:
    return value not in (None, (), {}) and not (
        isinstance(value, int | float) and (value < 0 or not math.isfinite(value))
    )


def _fields(row: TransferRecord | BundleEvent) -> Iterator[tuple[str, Any]]:
    return ((name, getattr(row, name)) for name in row.__dataclass_fields__)
