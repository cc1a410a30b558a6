"""Snapshots in files: written by `kvdiag snapshot`, replayed by `kvdiag preflight --snapshot`."""

import json
import os
import stat
from datetime import UTC, datetime
from pathlib import Path

import msgspec

import kvdiag
from kvdiag.errors import InputError
from kvdiag.model.missing import Missing
from kvdiag.model.snapshot import Snapshot
from kvdiag.model.snapshot_document import SnapshotDocument
from kvdiag.sources.base import discover

LIMIT_BYTES = 64 << 20
"""A host with 32 NICs takes about 1 MB; more than this is no snapshot."""
_SCHEMA = "kvdiag.snapshot/1"


def to_document(snapshot: Snapshot, *, redacted: bool) -> SnapshotDocument:
    """Return the file's content; a part that has no JSON form is missing there, with the reason."""
    parts = {}
    missing = {name: reason.missing for name, reason in snapshot.missing()}
    for part_type, value in snapshot.parts.items():
        if not isinstance(value, Missing):
            try:
                form = json.loads(msgspec.json.encode(value))
                msgspec.convert(form, type=part_type)
                parts[part_type.__name__] = form
            except (TypeError, ValueError) as error:
                missing[part_type.__name__] = f"cannot be saved: {error}"
    when = datetime.fromtimestamp(snapshot.time_s, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
    return SnapshotDocument(
        schema="kvdiag.snapshot/1",
        version=kvdiag.__version__,
        host=snapshot.host,
        time=when,
        redacted=redacted,
        parts=dict(sorted(parts.items())),
        missing=dict(sorted(missing.items())),
    )


def read(path: Path, flag: str) -> Snapshot:
    """Return the snapshot of a file; InputError names `flag`, the file and the field that is wrong.

    Parts that this version does not know are left out, those that it cannot read are Missing.
    """
    try:
        document = msgspec.json.decode(_content(path, flag), type=SnapshotDocument)
    except msgspec.MsgspecError as error:
        raise InputError(f"{flag} {path}: no {_SCHEMA}: {error}; make one with kvdiag snapshot -o FILE") from error
    except (UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"{flag} {path}: no {_SCHEMA}: it holds no JSON text") from error
    try:
        time_s = datetime.fromisoformat(document.time).timestamp()
    except (ValueError, OverflowError) as error:
        raise InputError(f"{flag} {path}: time {document.time[:40]!r} is no RFC 3339 time") from error
    known = {source.part.__name__: source.part for source in discover()}
    parts: dict[type[object], object] = {known[name]: Missing(reason) for name, reason in document.missing.items()
                                         if name in known}  # fmt: skip
    for name, form in document.parts.items():
        if name in known:
            try:
                parts[known[name]] = msgspec.convert(form, type=known[name])
            except msgspec.ValidationError as error:
                parts[known[name]] = Missing(f"version {document.version} saved a {name} that cannot be read: {error}")
    for name, part_type in known.items():
        parts.setdefault(part_type, Missing(f"version {document.version} of kvdiag, which saved this, read no {name}"))
    return Snapshot(host=document.host, time_s=time_s, parts=parts)


def _content(path: Path, flag: str) -> bytes:
    try:
        # Without blocking: a pipe would be waited for.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise InputError(f"{flag} {path}: {error.strerror or error}") from error
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        raise InputError(f"{flag} {path}: not a regular file; give one that kvdiag snapshot -o FILE wrote")
    with os.fdopen(descriptor, "rb") as file:
        if status.st_size > LIMIT_BYTES:
            raise InputError(f"{flag} {path}: {status.st_size} bytes; a snapshot has at most {LIMIT_BYTES}")
        try:
            return file.read(LIMIT_BYTES)
        except OSError as error:
            raise InputError(f"{flag} {path}: {error.strerror or error}") from error
