"""The messages of the control channel and their bounds; a body that breaks one is refused as a whole."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from kvdiag_probes.datapath import Operation, Transport
from kvdiag_probes.memory import MemoryKind

PROTOCOL = 4
"""Raised when a message changes its meaning; both ends must speak the same."""
PROTOCOL_HEADER = "kvdiag-protocol"
MAX_REQUEST_BYTES = 64 * 1024
MAX_ANSWER_BYTES = 16 * 1024 * 1024

_U24 = Annotated[int, Meta(ge=0, lt=1 << 24)]
_U32 = Annotated[int, Meta(ge=0, lt=1 << 32)]
_Text = Annotated[str, Meta(max_length=256)]
_Size = Annotated[int, Meta(ge=1, le=1 << 40)]
_Offset = Annotated[int, Meta(ge=0, le=1 << 40)]
# Decimal text: JSON numbers lose precision above 2^53 in some readers, and msgspec bounds end at 2^63.
_Decimal = Annotated[str, Meta(pattern=r"^[0-9]{1,20}$")]
_Metadata = Annotated[str, Meta(max_length=48 * 1024)]
Grant = Literal["all", "write", "read", "none"]
"""What the peer may do with a buffer."""


class _Message(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class QueuePairNumber(_Message, frozen=True, kw_only=True):
    qpn: _U24
    psn: _U24


class QueuePairAddress(_Message, frozen=True, kw_only=True):
    """Where a queue pair and its registered buffer are, and `more` queue pairs of the same end; `mtu` in bytes."""

    qpn: _U24
    psn: _U24
    gid: Annotated[str, Meta(max_length=45)]
    lid: Annotated[int, Meta(ge=0, le=0xFFFF)]
    mtu: Annotated[int, Meta(ge=256, le=4096)]
    rd_atomic: Annotated[int, Meta(ge=1, le=255)]
    rkey: _U32
    address_text: _Decimal
    more: Annotated[tuple[QueuePairNumber, ...], Meta(max_length=1023)] = ()

    @property
    def address(self) -> int:
        return int(self.address_text)


class OpenRequest(_Message, frozen=True, kw_only=True):
    """Ask for a session: a buffer of `size` bytes of a kind of memory, to be reached over `transport`.

    `rail` counts the agent's devices; `queue_depth` is what the agent's own passes will need, `receives` how many
    messages with immediate data it must take at a time; `grant` less than all provokes refusals, for tests.
    `nixl_metadata` (base64) is the initiator's NIXL agent, for transport nixl.
    """

    transport: Transport
    size: _Size
    queue_pair: QueuePairAddress | None = None
    rail: Annotated[int, Meta(ge=0, lt=64)] = 0
    queue_depth: Annotated[int, Meta(ge=1, le=8192)] = 16
    receives: Annotated[int, Meta(ge=0, le=8192)] = 0
    memory: MemoryKind = MemoryKind.HOST
    relaxed_ordering: bool = False
    grant: Grant = "all"
    nixl_metadata: _Metadata | None = None


class OpenAnswer(_Message, frozen=True, kw_only=True):
    """What the agent spent on its buffer, its registration and the rest of the set-up is in seconds.

    `discover_s`, no part of the others, is its search for the device: an engine makes that once, when it starts.
    """

    session: _Text
    allocate_s: float
    register_s: float
    setup_s: float
    discover_s: float = 0.0
    device: _Text | None = None
    queue_pair: QueuePairAddress | None = None
    memory: Annotated[str, Meta(max_length=1024)] | None = None
    latency_loop: Annotated[str, Meta(max_length=1024)] | None = None
    tcp_port: Annotated[int, Meta(ge=1, le=65535)] | None = None
    tcp_key: Annotated[str, Meta(max_length=64)] | None = None
    nixl_metadata: _Metadata | None = None
    nixl_address: _Decimal | None = None


class FillRequest(_Message, frozen=True, kw_only=True):
    """Write the pattern of `seed` over `size` bytes of the session's buffer, from `offset` on."""

    seed: _U32
    size: _Size
    offset: _Offset = 0


class VerifyRequest(_Message, frozen=True, kw_only=True):
    """Compare `size` bytes from `offset` on with the pattern of `seed`.

    With `block`, the size of each message, a difference is classified; `stale` is the seed that was there before.
    `immediates` messages with immediate data, dealt out `chain` at a time, must have arrived, in order.
    """

    seed: _U32
    size: _Size
    offset: _Offset = 0
    block: _Offset = 0
    stale: _U32 | None = None
    immediates: Annotated[int, Meta(ge=0, le=8192)] = 0
    chain: Annotated[int, Meta(ge=1, le=8192)] = 1


class VerifyAnswer(_Message, frozen=True, kw_only=True):
    """`mismatch` is None where every byte is right; else one line with offset and length."""

    digest: _Text
    mismatch: Annotated[str, Meta(max_length=512)] | None = None


class ReceiveRequest(_Message, frozen=True, kw_only=True):
    """Get ready for `count` messages with immediate data, dealt out to the queue pairs `chain` at a time."""

    count: Annotated[int, Meta(ge=1, le=8192)]
    chain: Annotated[int, Meta(ge=1, le=8192)]


class ServeRequest(_Message, frozen=True, kw_only=True):
    """Progress the session's transport without pause for so many seconds at most; 0 ends it."""

    seconds: Annotated[float, Meta(ge=0, le=3600)]


class PassRequest(_Message, frozen=True, kw_only=True):
    """Run one pass against the initiator's buffer as soon as the eight bytes at `flag_offset` hold `flag`.

    With `watch` no pass is run: when the flag is seen, the payload before it is compared with the pattern at once. With
    `answer` there is no flag: each message of the pass answers one of the initiator's, of the seed's pattern from
    the buffer's start on, as soon as that one's last byte is there.
    """

    flag: _U32
    flag_offset: _Offset
    operation: Operation = Operation.WRITE
    size: _Size
    slots: Annotated[int, Meta(ge=1, le=8192)]
    queue_depth: Annotated[int, Meta(ge=1, le=8192)] = 16
    chain: Annotated[int, Meta(ge=1, le=8192)] = 1
    base: _Offset = 0
    timeout_s: Annotated[float, Meta(gt=0, le=600)]
    watch: bool = False
    answer: bool = False
    seed: _U32 = 0


class PassAnswer(_Message, frozen=True, kw_only=True):
    """How the pass that was asked for went: its seconds, or why it failed in one line."""

    elapsed_s: float
    error: Annotated[str, Meta(max_length=1024)] | None = None


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
