"""Passes over RC queue pairs: every work request is built before the clock starts, and posted in chains."""

import gc
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from kvdiag.errors import KvdiagError, UnavailableError
from kvdiag_probes.completion import completion_error, leading
from kvdiag_probes.datapath import Operation, Pass, Plan, lane_slots

_EMPTY_POLLS_BEFORE_YIELD = 64
_YIELD_S = 20e-6
_POLL_BATCH = 16
_FLAG_BYTES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """One connected queue pair, with the addresses and keys of the buffers at both ends."""

    queue_pair: Any
    completions: Any
    local: int
    lkey: int
    remote: int
    rkey: int


@dataclass(frozen=True, slots=True)
class _Signal:
    """What one completion means: which chain it times, and how many requests of which lane it retires."""

    chain: int
    lane: int
    retires: int


class ChainedPass:
    """Work requests in pre-built chains, each posted by one call, over one or several lanes.

    `rails` are lanes of several buffers: each rail carries all of the plan's messages, between its own buffers.
    """

    def __init__(self, rails: Sequence[Sequence[Lane]], plan: Plan, peer: str) -> None:
        self._plan = plan
        self._peer = peer
        # A work request's `next_wr` holds no reference, so every request is kept until `close`.
        self._requests: list[Any] = []
        self._heads: list[Any] = []
        self._posts: list[Any] = []
        self._lanes_of: list[int] = []
        self._lengths: list[int] = []
        self._signals: list[_Signal] = []
        self._lane_count = sum(len(rail) for rail in rails)
        self._unsignalled = [0] * self._lane_count
        chains = [chain for first, rail in self._numbered(rails) for chain in self._chains(first, rail)]
        # Lanes of all rails take turns, so that no queue idles while another is being filled.
        for _, lane, post, requests in sorted(chains, key=lambda chain: chain[:2]):
            self._add(lane, post, requests)
        self._polls = list({id(lane.completions): lane.completions.poll for rail in rails for lane in rail}.values())

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
        chain = len(self._heads)
        for (before, _), (after, _) in pairwise(requests):
            before.next_wr = after
        for request, signalled in requests:
            self._unsignalled[lane] += 1
            request.wr_id = len(self._signals)
            if signalled:
                self._signals.append(_Signal(chain, lane, self._unsignalled[lane]))
                self._unsignalled[lane] = 0
        self._heads.append(requests[0][0])
        self._posts.append(post)
        self._lanes_of.append(lane)
        self._lengths.append(len(requests))

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
            return self._run()
        finally:
            if collecting:
                gc.enable()

    def _run(self) -> Pass:
        clock = time.perf_counter
        heads, posts, lengths, lanes_of = self._heads, self._posts, self._lengths, self._lanes_of
        signals, polls = self._signals, self._polls
        # A flag goes beside the payload: queue pairs have room for one request more than the depth.
        free = [max(self._plan.queue_depth, max(lengths))] * self._lane_count
        count, wanted, posted, done, empty = len(heads), len(signals), 0, 0, 0
        posted_at = [0.0] * count
        latencies: list[float] = []
        started_s = clock()
        deadline_s = started_s + self._plan.timeout_s
        while done < wanted:
            while posted < count and free[lanes_of[posted]] >= lengths[posted]:
                posted_at[posted] = clock()
                posts[posted](heads[posted])
                free[lanes_of[posted]] -= lengths[posted]
                posted += 1
            before = done
            for poll in polls:
                found, completions = poll(_POLL_BATCH)
                if not found:
                    continue
                now_s = clock()
                for completion in completions:
                    if completion.status:
                        raise self._failed(completions)
                    signal = signals[completion.wr_id]
                    latencies.append(now_s - posted_at[signal.chain])
                    free[signal.lane] += signal.retires
                    done += 1
                deadline_s = now_s + self._plan.timeout_s
            if done != before:
                empty = 0
                continue
            empty += 1
            if empty >= _EMPTY_POLLS_BEFORE_YIELD:
                if clock() > deadline_s:
                    raise self._late()
                time.sleep(_YIELD_S)
        return Pass(clock() - started_s, latencies)

    def close(self) -> None:
        """Free the work requests (pyverbs leaks them otherwise)."""
        for made in self._requests:
            made.close()
        self._requests.clear()
        self._heads.clear()

    def _failed(self, completions: list[Any]) -> KvdiagError:
        status = leading(completion.status for completion in completions)
        vendor = next((c.vendor_err for c in completions if c.status == status), 0)
        return completion_error(f"RDMA {self._plan.operation.verb}", self._peer, status or 0, vendor=vendor)

    def _late(self) -> KvdiagError:
        return UnavailableError(
            f"{self._peer}: RDMA {self._plan.operation.verb}: no completion within {self._plan.timeout_s:g} s "
            "(--timeout); check that the peer is alive and the link carries packets"
        )
