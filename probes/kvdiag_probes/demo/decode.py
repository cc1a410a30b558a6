"""The decode process: sees KV blocks arrive in its pool, takes the first decoding step, and writes a row."""

import select
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import msgspec

from kvdiag.errors import UnavailableError
from kvdiag.model.transfer import TransferRecord
from kvdiag_probes.demo import transport, worker
from kvdiag_probes.demo.channel import (
    AnyMessage,
    Channel,
    Coming,
    Completed,
    Configure,
    Endpoint,
    Finished,
    Loaded,
    Posted,
    Ready,
    Registered,
    Served,
)
from kvdiag_probes.demo.settings import DECODE_NODE, POLL_S, PREFILL_NODE, Settings
from kvdiag_probes.demo.transport import Target
from kvdiag_probes.demo.workload import FIRST_STEP_S, SLOT_BYTES, TOKEN_BYTES

_IDLE_S = 0.05
_FIRST_STEP_NS = round(FIRST_STEP_S * 1e9)


def record(
    posted: Posted, descriptors: int, arrived_ns: int, first_token_ns: int, wall_offset_ns: int
) -> TransferRecord:
    """Return the request's row; the stages share their borders, so they add up to ttft_s to the nanosecond.

    Data may be seen to have arrived before posting returned: then the wire's part is zero and posting ends there.
    """
    posted_ns = min(posted.posted_ns, arrived_ns)

    def seconds(start_ns: int, end_ns: int) -> float:
        return (end_ns - start_ns) / 1e9

    return TransferRecord(
        request_id=f"request-{posted.number:06d}",
        arrival_s=(posted.arrival_ns + wall_offset_ns) / 1e9,
        ttft_s=seconds(posted.arrival_ns, first_token_ns),
        prefill_node=PREFILL_NODE,
        decode_node=DECODE_NODE,
        prompt_tokens=posted.tokens,
        uncached_tokens=posted.tokens,
        turn=1,
        queue_s=seconds(posted.arrival_ns, posted.compute_ns),
        prefill_s=seconds(posted.compute_ns, posted.computed_ns),
        pull_wait_s=seconds(posted.computed_ns, posted.transfer_ns),
        register_s=seconds(posted.transfer_ns, posted.registered_ns),
        post_s=seconds(posted.registered_ns, posted_ns),
        wire_s=seconds(posted_ns, arrived_ns),
        first_step_s=seconds(arrived_ns, first_token_ns),
        bytes=posted.tokens * TOKEN_BYTES,
        descriptors=descriptors,
        direction="push",
    )


def on_own_clock(posted: Posted, ahead_ns: int) -> Posted:
    """Return the stamps of prefill's clock as this one's, which is `ahead_ns` ahead."""
    stamps = ("arrival_ns", "compute_ns", "computed_ns", "transfer_ns", "registered_ns", "posted_ns")
    return msgspec.structs.replace(posted, **{name: getattr(posted, name) + ahead_ns for name in stamps})


@dataclass(slots=True)
class Request:
    """What is known of a request between the announcement of its transfer and its row; ns of the monotonic clock."""

    posted: Posted | None = None
    target: Target | None = None
    arrived_ns: int | None = None
    verified: bool = False
    first_token_ns: int | None = None
    descriptors: int | None = None


class Decoder:
    """The requests under way on this side."""

    def __init__(
        self, targets: Sequence[Target], peer: Channel, rows: TextIO, ahead_ns: int = 0, poll_s: float = POLL_S
    ) -> None:
        self.served: int | None = None
        self.written = 0
        self._targets, self._peer, self._rows = targets, peer, rows
        self._ahead_ns, self._poll_s = ahead_ns, poll_s
        self._requests: dict[int, Request] = {}
        self._wall_offset_ns = time.time_ns() - time.monotonic_ns()

    @property
    def finished(self) -> bool:
        """Whether prefill has sent its last request and every row is written."""
        return self.served is not None and self.written >= self.served

    def step(self) -> None:
        """Take messages, progress the target, verify arrived data, end first steps, write rows."""
        for message in self._peer.poll():
            self._take(message)
        for target in self._targets:
            for number in target.arrivals():
                self._of(number).arrived_ns = time.monotonic_ns()
                self._of(number).target = target
        for number, request in list(self._requests.items()):
            if request.posted is None or request.arrived_ns is None:
                continue
            if not request.verified:
                self._verify(request.posted, request.target or self._targets[0])
                request.verified = True
            if request.first_token_ns is None and time.monotonic_ns() >= request.arrived_ns + _FIRST_STEP_NS:
                request.first_token_ns = time.monotonic_ns()
            if request.first_token_ns is not None and request.descriptors is not None:
                del self._requests[number]
                if number >= 0:
                    self._write(request.posted, request.descriptors, request.arrived_ns, request.first_token_ns)

    def wait_s(self) -> float:
        """How long nothing needs to be done unless a message comes, seconds."""
        if any(request.arrived_ns is None for request in self._requests.values()):
            return self._poll_s
        due_ns = [r.arrived_ns for r in self._requests.values() if r.arrived_ns is not None and not r.first_token_ns]
        if not due_ns:
            return _IDLE_S
        return max(0.0, (min(due_ns) + _FIRST_STEP_NS - time.monotonic_ns()) / 1e9)

    def _take(self, message: AnyMessage) -> None:
        if isinstance(message, Coming):
            self._of(message.number)
        elif isinstance(message, Posted):
            self._of(message.number).posted = on_own_clock(message, self._ahead_ns)
        elif isinstance(message, Completed):
            request = self._of(message.number)
            request.descriptors = message.descriptors
            if message.arrived:
                request.arrived_ns = time.monotonic_ns()
        elif isinstance(message, Registered):
            self._targets[0].load(message.metadata)
            self._peer.send(Loaded())
        elif isinstance(message, Served):
            self.served = message.requests

    def _of(self, number: int) -> Request:
        # A notification can overtake the announcement, which comes by another way.
        return self._requests.setdefault(number, Request())

    def _verify(self, posted: Posted, target: Target) -> None:
        expected = transport.mark(posted.number)
        for slot in (posted.first_slot, posted.last_slot):
            start = slot * SLOT_BYTES
            if bytes(target.pool[start : start + len(expected)]) != expected:
                raise UnavailableError(f"request {posted.number}: slot {slot} does not hold the data that were sent")

    def _write(self, posted: Posted, descriptors: int, arrived_ns: int, first_token_ns: int) -> None:
        row = record(posted, descriptors, arrived_ns, first_token_ns, self._wall_offset_ns)
        self._rows.write(msgspec.json.encode(row).decode() + "\n")
        self._rows.flush()
        self.written += 1


def serve(settings: Settings, orchestrator: Channel, peer: Channel, configure: Configure) -> None:
    """Connect, and serve until prefill has nothing more and every row is written."""
    targets = transport.open_targets(settings, DECODE_NODE, configure.address)
    for target in targets:
        greeting = peer.receive(worker.PATIENCE_S)
        if not isinstance(greeting, Endpoint):
            raise TypeError(f"expected Endpoint, got {greeting}")
        if greeting.metadata:
            target.load(greeting.metadata)
        peer.send(target.endpoint())
    orchestrator.send(Ready())
    with Path(settings.records).open("a", encoding="utf-8") as rows:
        decoder = Decoder(targets, peer, rows, settings.clock_offset_ns, settings.poll_s)
        watched: Sequence[Channel] = (peer, orchestrator)
        while not decoder.finished:
            decoder.step()
            for _ in orchestrator.poll():
                pass
            wait_s = decoder.wait_s()
            if wait_s > settings.poll_s:
                select.select(watched, [], [], wait_s)
            else:
                time.sleep(wait_s)
    orchestrator.send(Finished(decoder.written))
    worker.stay(orchestrator)


if __name__ == "__main__":
    worker.run(serve, DECODE_NODE, sys.argv[1:])
