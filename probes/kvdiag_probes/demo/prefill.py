"""The prefill process: requests queue for a simulated accelerator, then their KV blocks are pushed to decode.

The accelerator works through its queue on a timeline of its own, as a GPU does: it computes nothing, but the host's
work (registration, posting) can neither delay it nor be hidden by it.
"""

import select
import statistics
import sys
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from kvdiag.errors import UnavailableError
from kvdiag_probes.demo import transport, worker
from kvdiag_probes.demo.blocks import Ring
from kvdiag_probes.demo.channel import (
    Begin,
    Channel,
    Coming,
    Completed,
    Configure,
    Degrade,
    Endpoint,
    Finished,
    Loaded,
    Posted,
    Ready,
    Registered,
    Served,
)
from kvdiag_probes.demo.settings import PREFILL_NODE, Settings
from kvdiag_probes.demo.transport import Initiator, Transfer
from kvdiag_probes.demo.workload import Request, draw

T = TypeVar("T")

BEGIN_WITHIN_S = 600.0
"""What else is to be observed has to start first; that the orchestrator went away is seen at once."""
WARM_UP = 8
"""Transfers before the run, so that no request pays for the connection."""


@dataclass(frozen=True, slots=True)
class Computed:
    """A request on the accelerator's timeline: monotonic ns."""

    request: Request
    arrival_ns: int
    start_ns: int
    end_ns: int


def timeline(requests: tuple[Request, ...], begin_ns: int) -> deque[Computed]:
    """Return when each request is computed: first come, first served, one at a time."""
    free_ns = begin_ns
    computed = deque[Computed]()
    for request in requests:
        arrival_ns = begin_ns + round(request.offset_s * 1e9)
        start_ns = max(arrival_ns, free_ns)
        free_ns = start_ns + round(request.prefill_s * 1e9)
        computed.append(Computed(request, arrival_ns, start_ns, free_ns))
    return computed


class Pusher:
    """Moves one request after the other out of the pool, one at a time; `fault` is what it does wrong."""

    def __init__(self, initiators: Sequence[Initiator], peer: Channel, settings: Settings) -> None:
        self.fault = ""
        self._initiators, self._peer = initiators, peer
        self._tidy, self._fragmented = Ring(scattered=False), Ring(scattered=True, seed=settings.seed)
        self._staging_bytes = 0
        self._poll_s = settings.poll_s
        self._under_way: tuple[int, Transfer, bool] | None = None

    @property
    def busy(self) -> bool:
        """Whether a transfer is under way."""
        return self._under_way is not None

    @property
    def _initiator(self) -> Initiator:
        """The one in use: the last one where RDMA is given up for TCP."""
        return self._initiators[-1 if self.fault == "tcp" else 0]

    def rehearse(self) -> None:
        """Connect and warm up, and find out what a staging buffer costs on this machine."""
        for fault in ("tcp", "") if len(self._initiators) > 1 else ("",):
            self.fault = fault
            for number in range(-WARM_UP, 0):
                now_ns = time.monotonic_ns()
                self.push(number, 200, (now_ns, now_ns, now_ns))
                self.drain()
        if not self._initiator.registers:
            return
        costs_s = []
        for _ in range(WARM_UP):
            start_s = time.monotonic()
            staging, _ = self._initiator.register_staging(transport.STAGING_TRIAL_BYTES)
            staging.free()
            costs_s.append(time.monotonic() - start_s)
        self._staging_bytes = transport.staging_bytes(statistics.median(costs_s))

    def push(self, number: int, tokens: int, stamps_ns: tuple[int, int, int]) -> None:
        """Start the transfer of one request; `stamps_ns` are its arrival, start and end of compute."""
        ring = self._fragmented if self.fault == "layout" else self._tidy
        slots = ring.take(tokens)
        first, last = int(slots[0]), int(slots[-1])
        self._peer.send(Coming(number))
        transfer_ns = time.monotonic_ns()
        staging = None
        if self.fault == "registration":
            staging, metadata = self._initiator.register_staging(self._staging_bytes)
            self._peer.send(Registered(metadata))
            _expect(self._peer, Loaded)
        registered_ns = time.monotonic_ns()
        initiator = self._initiator
        posted = initiator.post(number, slots, staging)
        stamps = (*stamps_ns, transfer_ns, registered_ns, time.monotonic_ns())
        self._peer.send(Posted(number, tokens, *stamps, first, last))
        self._under_way = (number, posted, initiator.target_sees_arrival)

    def reap(self) -> None:
        """Progress the transfer under way, and release it when it is complete."""
        if self._under_way is None or not self._under_way[1].done():
            return
        number, posted, target_sees_arrival = self._under_way
        self._peer.send(Completed(number, posted.descriptors(), not target_sees_arrival))
        posted.release()
        self._under_way = None

    def drain(self) -> None:
        """Wait until nothing is under way; UnavailableError when that takes too long."""
        deadline_s = time.monotonic() + worker.PATIENCE_S
        while self.busy:
            self.reap()
            if time.monotonic() > deadline_s:
                raise UnavailableError(f"a transfer did not end in {worker.PATIENCE_S:g} s")
            time.sleep(self._poll_s)


def serve(settings: Settings, orchestrator: Channel, peer: Channel, configure: Configure) -> None:
    """Connect, warm up, push every request of the workload, and say so."""
    initiators = transport.open_initiators(settings, PREFILL_NODE, configure.address)
    for initiator in initiators:
        peer.send(initiator.endpoint())
        initiator.connect(_expect(peer, Endpoint))
    pusher = Pusher(initiators, peer, settings)
    pusher.rehearse()
    orchestrator.send(Ready())
    begin = orchestrator.receive(BEGIN_WITHIN_S)
    if not isinstance(begin, Begin):
        raise TypeError(f"expected Begin, got {begin}")
    requests = draw(settings.seed, settings.rate, settings.duration_s, settings.surge, settings.prompt_scale)
    waiting = timeline(requests, begin.at_ns)
    while waiting or pusher.busy:
        for command in orchestrator.poll():
            if isinstance(command, Degrade):
                pusher.fault = command.fault
        if waiting and not pusher.busy and waiting[0].end_ns <= time.monotonic_ns():
            ready = waiting.popleft()
            pusher.push(ready.request.number, ready.request.tokens, (ready.arrival_ns, ready.start_ns, ready.end_ns))
        pusher.reap()
        if pusher.busy:
            time.sleep(settings.poll_s)
        elif waiting:
            left_s = (waiting[0].end_ns - time.monotonic_ns()) / 1e9
            select.select([orchestrator], [], [], max(left_s, 0.0))
    peer.send(Served(len(requests)))
    orchestrator.send(Finished(len(requests)))
    worker.stay(orchestrator)


def _expect(peer: Channel, kind: type[T]) -> T:
    message = peer.receive(worker.PATIENCE_S)
    if not isinstance(message, kind):
        raise TypeError(f"expected {kind.__name__}, got {message}")
    return message


if __name__ == "__main__":
    worker.run(serve, PREFILL_NODE, sys.argv[1:])
