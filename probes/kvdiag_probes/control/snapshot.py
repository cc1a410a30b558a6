"""A host's snapshot on the control channel: each part by the name of its type."""

import secrets

import msgspec

from kvdiag.derive.redact import without_secrets
from kvdiag.model.missing import Missing
from kvdiag.model.snapshot import Snapshot
from kvdiag.sources.base import Context, collect, discover
from kvdiag_probes.control.messages import SnapshotAnswer

_KEY = secrets.token_bytes(32)
"""Of this process alone: what is replaced is replaced alike in every answer of one agent."""


def read_snapshot() -> Snapshot:
    """Read every source of this live host, for a peer: without secrets."""
    return without_secrets(collect(Context()), _KEY)


def encode_snapshot(snapshot: Snapshot) -> SnapshotAnswer:
    """Return the snapshot as a message; a part that has no JSON form becomes missing, with the reason."""
    parts: dict[str, msgspec.Raw] = {}
    missing = {name: reason.missing for name, reason in snapshot.missing()}
    for part_type, value in snapshot.parts.items():
        if isinstance(value, Missing):
            continue
        try:
            parts[part_type.__name__] = msgspec.Raw(msgspec.json.encode(value))
        except TypeError as error:
            missing[part_type.__name__] = f"cannot be sent: {error}"
    return SnapshotAnswer(host=snapshot.host, time_s=snapshot.time_s, parts=parts, missing=missing)


def decode_snapshot(answer: SnapshotAnswer) -> Snapshot:
    """Return the snapshot of a message; parts that this version does not know are left out."""
    known = {source.part.__name__: source.part for source in discover()}
    parts: dict[type[object], object] = {}
    for name, raw in answer.parts.items():
        if name in known:
            try:
                parts[known[name]] = msgspec.json.decode(raw, type=known[name])
            except msgspec.MsgspecError as error:
                parts[known[name]] = Missing(f"{answer.host} sent a {name} that cannot be read: {error}")
    for name, reason in answer.missing.items():
        if name in known:
            parts[known[name]] = Missing(reason)
    return Snapshot(host=answer.host, time_s=answer.time_s, parts=parts)
