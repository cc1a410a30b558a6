"""What a data path is, over verbs or over TCP: one local buffer, one remote buffer, one-sided operations between."""

import mmap
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from kvdiag_probes.ping_pong import Awaited


class Operation(StrEnum):
    """One-sided operations; WRITE_IMM is a WRITE whose last packet also consumes a receive at the target."""

    WRITE = "write"
    READ = "read"
    WRITE_IMM = "write-imm"

    @property
    def pushes(self) -> bool:
        """Whether the payload goes from the initiator to the target."""
        return self is not Operation.READ

    @property
    def verb(self) -> str:
        """The operation as the verbs name it."""
        return {"write": "WRITE", "read": "READ", "write-imm": "WRITE WITH IMMEDIATE"}[self.value]


class Transport(StrEnum):
    RDMA = "rdma"
    TCP = "tcp"
    NIXL = "nixl"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One pass over the buffers: `slots` messages of `size` bytes, message i at `base` + i × size at both ends.

    They are posted `chain` at a time, to each queue pair in turn; at most `queue_depth` are outstanding on one, and at
    most `in_flight` on all together (default: as many as the depths allow). Every
    `signal`-th of a queue pair (default: the last of each chain) is timed from its post to its completion.
    `flag_offset` adds a WRITE of the eight bytes there, before the payload or (`flag_last`) after it.
    """

    operation: Operation
    size: int
    slots: int
    queue_depth: int
    chain: int
    timeout_s: float
    in_flight: int | None = None
    signal: int | None = None
    inline: bool = False
    base: int = 0
    flag_offset: int | None = None
    flag_last: bool = False

    @property
    def bytes(self) -> int:
        return self.size * self.slots


@dataclass(frozen=True, slots=True)
class Pass:
    """How long a pass took from its first post to its last completion, and its samples, in seconds.

    `posted_s` is when each sample began, by time.perf_counter; empty where that was not kept.
    """

    elapsed_s: float
    latencies_s: list[float] = field(default_factory=list)
    posted_s: list[float] = field(default_factory=list)


class PreparedPass(Protocol):
    def run(self) -> Pass:
        """Carry out the pass once; UnavailableError with the cause when it fails, within the plan's timeout."""
        ...

    def close(self) -> None: ...


@runtime_checkable
class ExchangingPass(PreparedPass, Protocol):
    def exchange(self, buffer: memoryview, awaited: "Sequence[Awaited]", *, serves: bool) -> Pass:
        """Carry out the pass one message at a time, each answering one of the peer's, or answered where it `serves`.

        A message has come when its last byte is in `buffer`. Samples are halves of round trips, true of who serves.
        """
        ...


class DataPath(Protocol):
    """The initiator's end; `buffer` is its memory, registered where the transport has such a thing."""

    @property
    def buffer(self) -> memoryview: ...

    def prepare(self, plan: Plan) -> PreparedPass: ...

    def push(self, start: int, stop: int) -> None:
        """Bring bytes written to `buffer` to where the transport reads them: another memory, for a GPU's."""
        ...

    def pull(self, start: int, stop: int) -> None:
        """Bring what the transport delivered into `buffer`."""
        ...

    def close(self) -> None: ...


class Memory:
    """Anonymous page-aligned memory; `view` must not be used after `close`."""

    def __init__(self, size: int) -> None:
        self._map = mmap.mmap(-1, size)
        self.view = memoryview(self._map)

    def touch(self) -> None:
        """Fault every page in, so that registering the memory is not charged for it."""
        for offset in range(0, len(self.view), mmap.PAGESIZE):
            self.view[offset] = 0

    def close(self) -> None:
        """Give the memory back to the system; a view that someone still holds keeps it alive instead."""
        try:
            self.view.release()
            self._map.close()
        except BufferError:
            return


def chain_length(size: int, queue_depth: int) -> int:
    """Return how many messages share one post and one completion.

    Large messages complete one by one (their time dwarfs the few microseconds that Python spends on a completion);
    small ones in chains of up to 16, four chains to a queue, which reached 0.93 to 1.00 of perftest's rate.
    """
    return 1 if size >= 1 << 18 else max(1, min(16, queue_depth // 4))


def slot_count(size: int, least: int, messages: int, ring_bytes: int = 16 << 20, most: int = 4096) -> int:
    """Return how many messages a pass holds: `least`, a queue full or one for each queue pair, or more of them up to
    `ring_bytes` and `most` messages.
    """
    return max(1, min(messages, max(least, min(most, ring_bytes // size))))


def lane_slots(total: int, chain: int, lanes: int) -> list[list[int]]:
    """Return which messages each of several queue pairs carries: chains are dealt out in turn."""
    dealt: list[list[int]] = [[] for _ in range(lanes)]
    for number, start in enumerate(range(0, total, chain)):
        dealt[number % lanes] += range(start, min(start + chain, total))
    return dealt
