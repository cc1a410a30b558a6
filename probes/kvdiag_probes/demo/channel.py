"""Messages between the demo's processes: one packet each, on a socket pair that exists only as long as they do."""

import select
import socket
import time
from collections.abc import Iterator
from typing import Self

import msgspec

from kvdiag.errors import UnavailableError


class Message(msgspec.Struct, tag=True):
    """Base of all messages; the tag is the class name."""


class Started(Message):
    """Worker to orchestrator: the process runs, in its own network namespace where it was given one."""


class Configure(Message):
    """Orchestrator to worker: the interface to use, and its address."""

    device: str
    address: str


class Ready(Message):
    """Worker to orchestrator: memory is registered and the peer connected."""


class Begin(Message):
    """Orchestrator to worker: the run starts at this instant of the monotonic clock."""

    at_ns: int


class Degrade(Message):
    """Orchestrator to prefill: from now on do this wrong."""

    fault: str


class Finished(Message):
    """Worker to orchestrator: every request was served."""

    requests: int


class Failed(Message):
    """Worker to orchestrator: what went wrong, in one line."""

    reason: str


class Endpoint(Message):
    """Prefill and decode to each other: how to reach my memory (NIXL agent metadata, or host:port), and my pool."""

    metadata: bytes
    pool_address: int


class Registered(Message):
    """Prefill to decode: my memory changed, here is my metadata; decode answers with Loaded."""

    metadata: bytes


class Loaded(Message):
    """Decode to prefill: your metadata is loaded."""


class Coming(Message):
    """Prefill to decode: the transfer of this request begins."""

    number: int


class Posted(Message):
    """Prefill to decode: the request's stamps (ns of the monotonic clock) up to the end of posting, and its place."""

    number: int
    tokens: int
    arrival_ns: int
    compute_ns: int
    computed_ns: int
    transfer_ns: int
    registered_ns: int
    posted_ns: int
    first_slot: int
    last_slot: int


class Completed(Message):
    """Prefill to decode: the initiator has seen the end of the transfer, which took that many descriptors.

    `arrived` is True for a transport whose target gets no notification of its own: this is it.
    """

    number: int
    descriptors: int
    arrived: bool


class Served(Message):
    """Prefill to decode: no further request follows; `requests` were sent."""

    requests: int


AnyMessage = (
    Started
    | Configure
    | Ready
    | Begin
    | Degrade
    | Finished
    | Failed
    | Endpoint
    | Registered
    | Loaded
    | Coming
    | Posted
    | Completed
    | Served
)

_MAX_BYTES = 1 << 20


class Closed(Exception):  # noqa: N818 - a state of the channel, not an error of its user
    """The far end is gone."""


class Channel:
    """One end of a packet socket pair."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._socket.setblocking(False)
        self._decoder = msgspec.msgpack.Decoder(AnyMessage)

    @classmethod
    def pair(cls) -> tuple[Self, Self]:
        """Return two connected ends."""
        near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        return cls(near), cls(far)

    @classmethod
    def inherited(cls, descriptor: int) -> Self:
        """Return the end that the parent process passed on as a file descriptor."""
        return cls(socket.socket(fileno=descriptor))

    def fileno(self) -> int:
        """Return the descriptor, for select and for passing on."""
        return self._socket.fileno()

    def close(self) -> None:
        """Close this end."""
        self._socket.close()

    def send(self, message: Message, timeout_s: float = 10.0) -> None:
        """Send one message; Closed when the far end is gone or does not take it in time."""
        packet = msgspec.msgpack.encode(message)
        deadline_s = time.monotonic() + timeout_s
        while True:
            try:
                self._socket.send(packet)
                return
            except BlockingIOError:
                if time.monotonic() > deadline_s:
                    raise Closed from None
                select.select([], [self], [], 0.1)
            except OSError as error:
                raise Closed from error

    def poll(self) -> Iterator[AnyMessage]:
        """Yield every message that has arrived; Closed once the far end is gone and all is read."""
        while True:
            try:
                packet = self._socket.recv(_MAX_BYTES)
            except BlockingIOError:
                return
            except OSError as error:
                raise Closed from error
            if not packet:
                raise Closed
            yield self._decoder.decode(packet)

    def receive(self, timeout_s: float) -> AnyMessage:
        """Wait for the next message; Closed when the far end is gone, UnavailableError after `timeout_s` seconds."""
        deadline_s = time.monotonic() + timeout_s
        while True:
            for message in self.poll():
                return message
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                raise UnavailableError(f"the demo's other process did not answer within {timeout_s:g} s")
            select.select([self], [], [], left_s)
