"""Passes over RC queue pairs: every work request is built before the clock starts, and posted in chains."""

import gc
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise, repeat
from typing import Any, ClassVar

from kvdiag.errors import KvdiagError, UnavailableError
from kvdiag_probes.completion import completion_error, leading
from kvdiag_probes.completion_queue import CompletionQueue
from kvdiag_probes.datapath import Operation, Pass, Plan, lane_slots
from kvdiag_probes.ping_pong import Awaited

_SPINS = 64
"""Polls that find nothing before the processor is offered to others, which on one core have packets to handle."""
_SPINS_ALONE = 4096
"""The same where one message is outstanding and each poll late is latency: a sixth of a millisecond, and ten times that
where the processor is emulated, which is longer than a round trip in either case."""
_SLEEP_S, _AMPLE_S = 20e-6, 2e-3
"""While what is queued lasts longer than that at the rate so far, a short sleep leaves no queue empty; on one core with
software RDMA, which needs it for every packet, it moves a seventh more than polling does."""
_FLUSHED_WITH_IT = 16
_NONE_LEFT = 1 << 62
"""The length of a chain for which there never is room."""
_FLAG_BYTES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """One connected queue pair, with the addresses and keys of the buffers at both ends."""

    queue_pair: Any
    completions: CompletionQueue
    local: int
    lkey: int
    remote: int
    rkey: int


class ChainedPass:
    """Work requests in pre-built chains, each posted by one call, over one or several lanes.

    `rails` are lanes of several buffers: each rail carries all of the plan's messages, between its own buffers.
    `recording` off takes no time but the whole pass's: benchmarks do so to see what the recording costs.
    """

    recording: ClassVar[bool] = True

    def __init__(self, rails: Sequence[Sequence[Lane]], plan: Plan, peer: str) -> None:
        self._plan = plan
        self._peer = peer
        # A work request's `next_wr` holds no reference, so every request is kept until `close`.
        self._requests: list[Any] = []
        # Of each chain: how to post it, its head, its lane, its length.
        self._posts: list[tuple[Any, Any, int, int]] = []
        # Of each completion, by its wr_id: the chain that it times, the lane, and how many requests it retires there.
        self._signals: list[tuple[int, int, int]] = []
        self._lane_count = sum(len(rail) for rail in rails)
        self._unsignalled = [0] * self._lane_count
        chains = [chain for first, rail in self._numbered(rails) for chain in self._chains(first, rail)]
        # Lanes of all rails take turns, so that no queue idles while another is being filled.
        for _, lane, post, requests in sorted(chains, key=lambda chain: chain[:2]):
            self._add(lane, post, requests)
        # A flag goes beside the payload: queue pairs have room for one request more than the depth.
        self._room = [max(plan.queue_depth, *(length for _, _, _, length in self._posts))] * self._lane_count
        longest = max(length for _, _, _, length in self._posts)
        # However few are allowed, enough for one completion are: each lane may hold requests that none completes yet.
        unsignalled = self._lane_count * ((plan.signal or 1) - 1)
        self._allowed = max(plan.in_flight or sum(self._room), longest + unsignalled)
        self._queues = list({id(lane.completions): lane.completions for rail in rails for lane in rail}.values())

    @staticmethod
    def _numbered(rails: Sequence[Sequence[Lane]]) -> list[tuple[int, Sequence[Lane]]]:
        firsts = [sum(len(rail) for rail in rails[:i]) for i in range(len(rails))]
        return list(zip(firsts, rails, strict=True))

    def _chains(self, first: int, rail: Sequence[Lane]) -> list[tuple[int, int, Any, list[tuple[Any, bool]]]]:
        plan = self._plan
        signal = plan.signal or plan.chain
        made = []
        for index, (lane, slots) in enumerate(zip(rail, lane_slots(plan.slots, plan.chain, len(rail)), strict=True)):
            flagged = plan.flag_offset is not None and index == 0
            for number, start in enumerate(range(0, len(slots), plan.chain)):
                requests = []
                for position in range(start, min(start + plan.chain, len(slots))):
                    last = position == len(slots) - 1
                    signalled = (position + 1) % signal == 0 or last
                    signalled = signalled and not (flagged and last and plan.flag_last)
                    requests.append((self._request(lane, slots[position], signalled), signalled))
                if flagged and not plan.flag_last and start == 0:
                    requests.insert(0, (self._flag(lane, False), False))
                if flagged and plan.flag_last and start + plan.chain >= len(slots):
                    requests.append((self._flag(lane, True), True))
                made.append((number, first + index, lane.queue_pair.post_send, requests))
        return made

    def _add(self, lane: int, post: Any, requests: list[tuple[Any, bool]]) -> None:
        chain = len(self._posts)
        for (before, _), (after, _) in pairwise(requests):
            before.next_wr = after
        for request, signalled in requests:
            self._unsignalled[lane] += 1
            request.wr_id = len(self._signals)
            if signalled:
                self._signals.append((chain, lane, self._unsignalled[lane]))
                self._unsignalled[lane] = 0
        self._posts.append((post, requests[0][0], lane, len(requests)))

    def _request(self, lane: Lane, slot: int, signalled: bool) -> Any:
        import pyverbs.enums as e

        plan = self._plan
        offset = plan.base + slot * plan.size
        opcode = {
            Operation.WRITE: e.IBV_WR_RDMA_WRITE,
            Operation.READ: e.IBV_WR_RDMA_READ,
            Operation.WRITE_IMM: e.IBV_WR_RDMA_WRITE_WITH_IMM,
        }[plan.operation]
        immediate = slot if plan.operation is Operation.WRITE_IMM else 0
        return self._build(lane, offset, plan.size, opcode, signalled, plan.inline, immediate)

    def _flag(self, lane: Lane, signalled: bool) -> Any:
        import pyverbs.enums as e

        assert self._plan.flag_offset is not None
        return self._build(lane, self._plan.flag_offset, _FLAG_BYTES, e.IBV_WR_RDMA_WRITE, signalled, False, 0)

    def _build(
        self, lane: Lane, offset: int, size: int, opcode: int, signalled: bool, inline: bool, immediate: int
    ) -> Any:
        import pyverbs.enums as e
        from pyverbs.wr import SGE, SendWR

        flags = (e.IBV_SEND_SIGNALED if signalled else 0) | (e.IBV_SEND_INLINE if inline else 0)
        scatter = SGE(lane.local + offset, size, lane.lkey)
        request = SendWR(opcode=opcode, num_sge=1, sg=[scatter], send_flags=flags, imm_data=immediate)
        request.set_wr_rdma(lane.rkey, lane.remote + offset)
        self._requests += [scatter, request]
        return request

    def run(self) -> Pass:
        """Post and reap everything once; CompletionError or UnavailableError where that fails."""
        alone = self._plan.queue_depth == 1 and len(self._signals) == len(self._posts) and self._lane_count == 1
        collecting = gc.isenabled()
        gc.disable()
        try:
            for queue in self._queues:
                queue.begin()
            return self._one_by_one() if alone else self._stream()
        finally:
            if collecting:
                gc.enable()

    def _stream(self) -> Pass:
        clock, recording, signals = time.perf_counter, self.recording, self._signals
        free = self._room.copy()
        allowed = self._allowed
        queues: list[tuple[Any, Any, Any, Any, list[Any], list[int]]] = [
            (queue.ready, queue.attr, queue.stamp, queue.take, [], []) for queue in self._queues
        ]
        wanted, done, empty, retired = len(signals), 0, 0, 0
        posted_at: list[float] = []
        upcoming, end = iter(self._posts), (None, None, 0, _NONE_LEFT)
        started_s = idle_since_s = clock()
        post, head, to, length = next(upcoming)
        while done < wanted:
            while free[to] >= length <= allowed:
                if recording:
                    posted_at.append(clock())
                post(head)
                free[to] -= length
                allowed -= length
                post, head, to, length = next(upcoming, end)
            empty += 1
            for ready, attr, stamp, take, stamps, timed in queues:
                # One completion at a time, so that the room that it leaves is filled before the next is looked for.
                if ready(attr):
                    continue
                if recording:
                    stamps.append(stamp())
                wr_id, status = take()
                if status:
                    raise self._failed(status)
                chain, lane, retires = signals[wr_id]
                if recording:
                    timed.append(chain)
                free[lane] += retires
                allowed += retires
                retired += retires
                done += 1
                empty = 0
            if empty >= _SPINS:
                now_s = clock()
                idle_since_s = now_s if empty == _SPINS else idle_since_s
                queued = sum(self._room) - sum(free)
                self._idle(idle_since_s, sleep=0 < _AMPLE_S * retired < queued * (now_s - started_s))
        elapsed_s = clock() - started_s
        latencies: list[float] = []
        starts: list[float] = []
        for queue, (_, _, _, _, stamps, timed) in zip(self._queues, queues, strict=True):
            starts += (posted := [posted_at[chain] for chain in timed])
            latencies += self._latencies(queue, stamps, posted)
        return Pass(elapsed_s, latencies if recording else [elapsed_s], starts)

    def _one_by_one(self) -> Pass:
        """Run as `_stream` does where one message is outstanding, with nothing between its post and its completion."""
        clock, recording = time.perf_counter, self.recording
        (queue,) = self._queues
        ready, attr, stamp, take = queue.ready, queue.attr, queue.stamp, queue.take
        posted_at: list[float] = []
        stamps: list[Any] = []
        polls = range(_SPINS_ALONE)
        started_s = clock()
        for post, head, _, _ in self._posts:
            posted_s = clock()
            post(head)
            for _ in polls:
                if not ready(attr):
                    break
            else:
                self._await(queue, posted_s)
            ended = stamp()
            if recording:
                stamps.append(ended)
                posted_at.append(posted_s)
            _, status = take()
            if status:
                raise self._failed(status)
        elapsed_s = clock() - started_s
        return Pass(elapsed_s, self._latencies(queue, stamps, posted_at) if recording else [elapsed_s], posted_at)

    def exchange(self, buffer: memoryview, awaited: Sequence[Awaited], *, serves: bool) -> Pass:
        """Post one message, await the peer's, and so on; who does not serve awaits first.

        A message goes out as soon as the last byte of the one before it is seen, and the completion of the one before
        that is taken while it is under way: taken any earlier it would delay the answer. As in perftest's
        ib_write_lat a latency is half of what lies between two posts.
        """
        clock, polls = time.perf_counter, range(_SPINS_ALONE)
        (queue,) = self._queues
        posts = [(post, head) for post, head, _, _ in self._posts]
        answers = list(awaited)
        # Who answers begins with the first message, who serves with the answer to its first.
        last = answers.pop() if serves else None
        moments: list[float] = []
        seen_s = clock()
        untaken = False
        if serves:
            post, head = posts.pop(0)
            post(head)
            seen_s = clock()
            moments.append(seen_s)
            untaken = True
        for (post, head), (index, value) in zip(posts, answers, strict=True):
            for _ in polls:
                if buffer[index] == value:
                    break
            else:
                untaken = self._await_byte(buffer, index, value, seen_s, untaken=untaken)
            post(head)
            seen_s = clock()
            moments.append(seen_s)
            if untaken:
                self._await(queue, seen_s)
                self._take(queue)
            untaken = True
        if last is not None:
            untaken = self._await_byte(buffer, last.at, last.value, seen_s, untaken=untaken)
            moments.append(clock())
        if untaken:
            self._await(queue, seen_s)
            self._take(queue)
        return Pass(moments[-1] - moments[0], [(after_s - before_s) / 2 for before_s, after_s in pairwise(moments)])

    def _await_byte(self, buffer: memoryview, index: int, value: int, since_s: float, *, untaken: bool) -> bool:
        """Return when the byte has its value; whether the completion that was `untaken` still is.

        A message that failed is never answered: its completion says so.
        """
        (queue,) = self._queues
        while True:
            for _ in repeat(None, _SPINS):
                if buffer[index] == value:
                    return untaken
            if untaken and not queue.ready(queue.attr):
                self._take(queue)
                untaken = False
            self._idle(since_s)

    def _await(self, queue: CompletionQueue, since_s: float) -> None:
        """Return when the queue took up a completion."""
        ready, attr = queue.ready, queue.attr
        while True:
            for _ in repeat(None, _SPINS):
                if not ready(attr):
                    return
            self._idle(since_s)

    def _take(self, queue: CompletionQueue) -> None:
        _, status = queue.take()
        if status:
            raise self._failed(status)

    @staticmethod
    def _latencies(queue: CompletionQueue, stamps: list[Any], posted_at: list[float]) -> list[float]:
        ended = queue.times(stamps, posted_at)
        # A stamp of the adapter's may be off by the error of comparing two clocks.
        return [max(0.0, end_s - start_s) for end_s, start_s in zip(ended, posted_at, strict=True)]

    def _idle(self, since_s: float, *, sleep: bool = False) -> None:
        """Offer the processor to others; UnavailableError where nothing has come for too long."""
        if time.perf_counter() - since_s > self._plan.timeout_s:
            raise self._late()
        if sleep:
            time.sleep(_SLEEP_S)
        else:
            os.sched_yield()

    def close(self) -> None:
        """Free the work requests (pyverbs leaks them otherwise)."""
        for made in self._requests:
            made.close()
        self._requests.clear()
        self._posts.clear()

    def _failed(self, status: int) -> KvdiagError:
        """Return the error of a failed completion, or of one that came with it where this was only flushed."""
        found = [(status, next((queue.vendor_err for queue in self._queues if queue.vendor_err), 0))]
        for queue in self._queues:
            found += [(one.status, one.vendor_err) for one in queue.poll(_FLUSHED_WITH_IT)[1]]
        first = leading(one for one, _ in found) or status
        return completion_error(f"RDMA {self._plan.operation.verb}", self._peer, first, vendor=dict(found[::-1])[first])

    def _late(self) -> KvdiagError:
        return UnavailableError(
            f"{self._peer}: RDMA {self._plan.operation.verb}: no completion within {self._plan.timeout_s:g} s "
            "(--timeout); check that the peer is alive and the link carries packets"
        )
