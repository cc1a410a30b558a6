"""Documents of other commands, as files hold them: one JSON document, or a line for each."""

import os
import stat
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from kvdiag.errors import InputError
from kvdiag.model.bundle import Bundle
from kvdiag.model.demo import DemoDocument
from kvdiag.model.diagnosis import DiagnosisDocument
from kvdiag.model.preflight import PreflightDocument
from kvdiag.model.probe import ProbeDocument
from kvdiag.model.probe_cold import ColdDocument
from kvdiag.model.probe_compare import CompareDocument
from kvdiag.model.probe_connections import ConnectionsDocument
from kvdiag.model.probe_kv import KvDocument
from kvdiag.model.probe_register import RegisterDocument
from kvdiag.model.report import ReportDocumentInput, ReportInput, ReportItem

LIMIT_BYTES = 128 << 20
"""A preflight of 32 NICs takes about 1 MB, a file of a year's daily probes some 10 MB."""
MOST_LINES = 20
"""Of a file with a document in each line the newest are read."""
TYPES: dict[str, type[ReportDocumentInput]] = {
    "kvdiag.diagnose": DiagnosisDocument,
    "kvdiag.demo": DemoDocument,
    "kvdiag.preflight": PreflightDocument,
    "kvdiag.probe": ProbeDocument,
    "kvdiag.probe-kv": KvDocument,
    "kvdiag.probe-register": RegisterDocument,
    "kvdiag.probe-connections": ConnectionsDocument,
    "kvdiag.probe-cold": ColdDocument,
    "kvdiag.probe-compare": CompareDocument,
}
_MAJOR = "1"
_ARCHIVES = (".tar", ".tar.zst", ".tar.gz", ".tgz", ".zip")
_OF_A_BUNDLE = {f"{part}.{form}" for part in ("requests", "counters", "events") for form in ("parquet", "jsonl")}
_OF_A_BUNDLE.add("meta.json")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_LATEST_S = 4e9
"""Larger numbers are no seconds since the epoch that a recording could bear."""


def read_items(path: Path) -> tuple[ReportItem, ...]:
    """Return the documents of a file, at most the newest MOST_LINES; InputError names the file and what is wrong.

    A line that an interrupted writer left unfinished is passed over and noted.
    """
    if path.name.endswith(_ARCHIVES):
        raise InputError(f"{path}: an archive; unpack it first and give the trace bundle's folder")
    content, size, changed = _content(path)
    content = content.removeprefix(_BYTE_ORDER_MARK)
    if path.name in _OF_A_BUNDLE:
        raise InputError(f"{path}: a part of a trace bundle; give its folder, {path.parent}")
    if not content.strip():
        raise InputError(f"{path}: empty; give the output of a kvdiag command with --format json")
    try:
        found: list[tuple[str | None, Any]] = [(None, msgspec.json.decode(content))]
        notes: list[str] = []
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        found, notes = _lines(path, content, error)
    return tuple(
        _item(path, where, raw, size, changed, tuple(notes if number == 0 else ()))
        for number, (where, raw) in enumerate(found)
    )


def folder_input(folder: Path, bundle: Bundle) -> ReportInput:
    """Return what is known of a trace bundle's folder: the size of its files together, the newest change."""
    try:
        found = [entry.stat() for entry in os.scandir(folder) if entry.is_file()]
        created = _created(folder / "meta.json")
    except OSError as error:
        raise InputError(f"{folder}: {error.strerror}") from error
    newest = max((one.st_mtime for one in found), default=0.0)
    return ReportInput(
        path=str(folder),
        kind="trace bundle",
        bytes=sum(one.st_size for one in found),
        modified=_when(newest),
        made_by=None,
        made_on=None,
        made_at=created,
        notes=(
            *bundle.notes,
            *(() if bundle.series else ("no counters: what needs them was not judged",)),
            *(() if bundle.events else ("no events",)),
        ),
    )


def _created(meta: Path) -> str | None:
    """Return `created` of meta.json, which the reader of bundles has checked already."""
    if not meta.exists():
        return None
    found: Any = msgspec.json.decode(meta.read_bytes())
    created = found.get("created") if isinstance(found, dict) else None
    if isinstance(created, int | float) and 0 < created < _LATEST_S:
        return _when(created)
    return None if created is None else str(created)[:40]


def _content(path: Path) -> tuple[bytes, int, str]:
    try:
        # Without blocking: a pipe would be waited for.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from error
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise InputError(f"{path}: neither a regular file nor a folder; write the document to a file first")
        if status.st_size > LIMIT_BYTES:
            raise InputError(f"{path}: {status.st_size} bytes; at most {LIMIT_BYTES} are read")
        try:
            return file.read(LIMIT_BYTES), status.st_size, _when(status.st_mtime)
        except OSError as error:
            raise InputError(f"{path}: {error.strerror or error}") from error


def _lines(path: Path, content: bytes, whole: Exception) -> tuple[list[tuple[str | None, Any]], list[str]]:
    """Return the newest documents of a file with one in each line, or say what is wrong with it as one document."""
    documents: list[tuple[str | None, Any]] = []
    torn = others = 0
    for number, line in enumerate(content.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            one = msgspec.json.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            torn += 1
            continue
        if isinstance(one, dict) and "schema" in one:
            documents.append((f"line {number}", one))
        else:
            others += 1
    if not documents and others:
        raise InputError(f"{path}: {others} lines of JSON without a schema field; give output of kvdiag --format json")
    if not documents:
        raise InputError(f"{path}: not a whole JSON document: {whole}; was its writer interrupted?") from whole
    notes = [f"{torn} of its lines are no whole JSON document and were passed over"] if torn else []
    older = len(documents) - MOST_LINES
    if older > 0:
        notes.append(f"{older} older documents were left out; the newest {MOST_LINES} are here")
    return documents[-MOST_LINES:], notes


def _item(path: Path, where: str | None, raw: Any, size: int, changed: str, notes: tuple[str, ...]) -> ReportItem:
    named = f"{path}" if where is None else f"{path}, {where}"
    schema = raw.get("schema") if isinstance(raw, dict) else None
    if not isinstance(schema, str):
        raise InputError(
            f"{named}: JSON without a schema field; give output of a kvdiag command with --format json (of spans and "
            "load generators' files that of kvdiag diagnose)"
        )
    name, _, major = schema.partition("/")
    if name not in TYPES:
        known = ", ".join(one.removeprefix("kvdiag.") for one in TYPES)
        raise InputError(
            f"{named}: schema {schema[:60]!r} is nothing that a report shows; it shows {known}, and bundles"
        )
    if major != _MAJOR:
        raise InputError(
            f"{named}: schema {schema[:60]!r}; this kvdiag reads {name}/{_MAJOR}: use the kvdiag that made it"
        )
    try:
        document = msgspec.convert(raw, type=TYPES[name])
    except msgspec.ValidationError as error:
        raise InputError(f"{named}: no valid {schema}: {error}; make it anew with --format json") from error
    return ReportItem(
        input=ReportInput(
            path=named,
            kind=schema,
            bytes=size,
            modified=changed,
            made_by=document.version,
            made_on=document.host,
            made_at=document.time,
            notes=notes,
        ),
        content=document,
    )


def _when(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
