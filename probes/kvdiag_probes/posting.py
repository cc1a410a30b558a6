"""Passes over RC queue pairs: every work request is built before the clock starts, and posted in chains."""

import gc
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

from kvdiag_probes.compiled_turns import compiled_turns
from kvdiag_probes.completion_queue import CompletionQueue
from kvdiag_probes.datapath import Operation, Pass, Plan, lane_slots
from kvdiag_probes.ping_pong import Awaited
from kvdiag_probes.turns import InterpretedTurns, Turns
from kvdiag_probes.waiting import Watch

_SPINS = 64
"""Polls that find nothing before the processor is offered to others, which on one core have packets to handle."""
_AMPLE_S = 2e-3
"""While what is queued lasts longer than that at the rate so far, a short sleep leaves no queue empty; on one core with
software RDMA, which needs it for every packet, it moves a seventh more than polling does."""
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
        self._queues = list({id(lane.completions): lane.completions for rail in rails for lane in rail}.values())
        self._watch = Watch(plan, peer, self._queues)
        # A work request's `next_wr` holds no reference, so every request is kept until `close`.
        self._requests: list[Any] = []
        # Of each chain: how to post it, its head, its lane, its length.
        self._posts: list[tuple[Any, Any, int, int]] = []
        # Of each completion, by its wr_id: the chain that it times, the lane, and how many requests it retires there.
        self._signals: list[tuple[int, int, int]] = []
        self._lane_count = sum(len(rail) for rail in rails)
        self._unsignalled = [0] * self._lane_count
        self._turns: Turns | None = None
        if self._lane_count == plan.queue_depth == plan.chain == 1 and plan.flag_offset is None:
            self._turns = compiled_turns(next(lane for rail in rails for lane in rail), plan, self._watch)
        if self._turns is None:
            self._prepare(rails)

    def _prepare(self, rails: Sequence[Sequence[Lane]]) -> None:
        plan = self._plan
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
        if plan.queue_depth == 1 and len(self._signals) == len(self._posts) and self._lane_count == 1:
            posts = [(post, head) for post, head, _, _ in self._posts]
            self._turns = InterpretedTurns(posts, self._queues[0], self._watch)

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
        collecting = gc.isenabled()
        gc.disable()
        try:
            for queue in self._queues:
                queue.begin()
            return self._one_by_one(self._turns) if self._turns else self._stream()
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
                    raise self._watch.failed(status)
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
                self._watch.idle(idle_since_s, sleep=0 < _AMPLE_S * retired < queued * (now_s - started_s))
        elapsed_s = clock() - started_s
        latencies: list[float] = []
        starts: list[float] = []
        for queue, (_, _, _, _, stamps, timed) in zip(self._queues, queues, strict=True):
            starts += (posted := [posted_at[chain] for chain in timed])
            latencies += self._latencies(queue, stamps, posted)
        return Pass(elapsed_s, latencies if recording else [elapsed_s], starts)

    def _one_by_one(self, turns: Turns) -> Pass:
        """Run as `_stream` does where one message is outstanding."""
        (queue,) = self._queues
        started_s = time.perf_counter()
        posted_at, stamps = turns.one_by_one()
        elapsed_s = time.perf_counter() - started_s
        return Pass(elapsed_s, self._latencies(queue, stamps, posted_at) if self.recording else [elapsed_s], posted_at)

    def exchange(self, buffer: memoryview, awaited: Sequence[Awaited], *, serves: bool) -> Pass:
        """Answer each of the peer's messages with one of ours; see Turns.exchange.

        As in perftest's ib_write_lat a latency is half of what lies between two posts.
        """
        assert self._turns is not None
        moments = self._turns.exchange(buffer, awaited, serves=serves)
        return Pass(moments[-1] - moments[0], [(after_s - before_s) / 2 for before_s, after_s in pairwise(moments)])

    @staticmethod
    def _latencies(queue: CompletionQueue, stamps: list[Any], posted_at: list[float]) -> list[float]:
        ended = queue.times(stamps, posted_at)
        # A stamp of the adapter's may be off by the error of comparing two clocks.
        return [max(0.0, end_s - start_s) for end_s, start_s in zip(ended, posted_at, strict=True)]

    def close(self) -> None:
        """Free the work requests (pyverbs leaks them otherwise)."""
        for made in self._requests:
            made.close()
        self._requests.clear()
        self._posts.clear()
