"""The messages of the control channel and their bounds; a body that breaks one is refused as a whole."""

from typing import Annotated

import msgspec
from msgspec import Meta

from kvdiag_probes.datapath import Transport

PROTOCOL = 1
"""Raised when a message changes its meaning; both ends must speak the same."""
PROTOCOL_HEADER = "kvdiag-protocol"
MAX_REQUEST_BYTES = 64 * 1024
MAX_ANSWER_BYTES = 16 * 1024 * 1024

_U24 = Annotated[int, Meta(ge=0, lt=1 << 24)]
_U32 = Annotated[int, Meta(ge=0, lt=1 << 32)]
_Text = Annotated[str, Meta(max_length=256)]


class _Message(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class QueuePairAddress(_Message, frozen=True, kw_only=True):
    """Where a queue pair and its registered buffer are; `mtu` in bytes."""

    qpn: _U24
    psn: _U24
    gid: Annotated[str, Meta(max_length=45)]
    lid: Annotated[int, Meta(ge=0, le=0xFFFF)]
    mtu: Annotated[int, Meta(ge=256, le=4096)]
    rd_atomic: Annotated[int, Meta(ge=1, le=255)]
    rkey: _U32
    # Decimal text: JSON numbers lose precision above 2^53 in some readers, and msgspec bounds end at 2^63.
    address_text: Annotated[str, Meta(pattern=r"^[0-9]{1,20}$")]

    @property
    def address(self) -> int:
        return int(self.address_text)


class OpenRequest(_Message, frozen=True, kw_only=True):
    """Ask for a session: a buffer of `size` bytes to be reached over `transport`."""

    transport: Transport
    size: Annotated[int, Meta(ge=1, le=1 << 40)]
    queue_pair: QueuePairAddress | None = None


class OpenAnswer(_Message, frozen=True, kw_only=True):
    """What the agent spent on its buffer, its registration and the rest of the set-up is in seconds."""

    session: _Text
    allocate_s: float
    register_s: float
    setup_s: float
    device: _Text | None = None
    queue_pair: QueuePairAddress | None = None
    tcp_port: Annotated[int, Meta(ge=1, le=65535)] | None = None
    tcp_key: Annotated[str, Meta(max_length=64)] | None = None


class FillRequest(_Message, frozen=True, kw_only=True):
    """Write the pattern of `seed` over the first `size` bytes of the session's buffer."""

    seed: _U32
    size: Annotated[int, Meta(ge=1, le=1 << 40)]


class VerifyRequest(_Message, frozen=True, kw_only=True):
    """Compare the first `size` bytes with the pattern of `seed`."""

    seed: _U32
    size: Annotated[int, Meta(ge=1, le=1 << 40)]


class VerifyAnswer(_Message, frozen=True, kw_only=True):
    """`mismatch` is None where every byte is right; else one line with offset and length."""

    digest: _Text
    mismatch: Annotated[str, Meta(max_length=512)] | None = None


class Hello(_Message, frozen=True, kw_only=True):
    """What an agent says of itself, and the limits that it holds a probe to (bytes, seconds, count).

    `time_s` is its clock when it answered, in seconds since the epoch.
    """

    protocol: int
    version: _Text
    host: _Text
    max_buffer_bytes: int
    max_sessions: int
    session_idle_s: float
    time_s: float


class Refusal(_Message, frozen=True, kw_only=True):
    """Why a request was refused: one line for a person."""

    error: Annotated[str, Meta(max_length=1024)]


class SnapshotAnswer(_Message, frozen=True, kw_only=True):
    """A host's snapshot: encoded parts by type name, and why the others are missing."""

    host: _Text
    time_s: float
    parts: dict[str, msgspec.Raw]
    missing: dict[str, str]
