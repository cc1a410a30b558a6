"""Chains of work requests against queue pairs that complete at once, or as a test tells them to."""

import errno
import importlib
import time
from collections import deque
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest

from kvdiag.errors import UnavailableError, UndeterminedError
from kvdiag_probes import posting, waiting
from kvdiag_probes.completion import CompletionError
from kvdiag_probes.completion_queue import Completion, CompletionQueue
from kvdiag_probes.datapath import Operation, Plan
from kvdiag_probes.posting import ChainedPass, Lane
from kvdiag_probes.verbs import preload


class Request:
    open = 0

    def __init__(self, **given: Any) -> None:
        self.send_flags = given["send_flags"]
        self.wr_id = -1
        self.next_wr: Request | None = None
        Request.open += 1

    def set_wr_rdma(self, rkey: int, address: int) -> None:
        self.remote = (rkey, address)

    def close(self) -> None:
        Request.open -= 1


class Scatter:
    def __init__(self, address: int, length: int, lkey: int) -> None:
        self.local = (address, length, lkey)

    def close(self) -> None: ...


@dataclass
class Adapter(CompletionQueue):
    """A completion queue and the queue pairs of it: (queue pair, requests) of each post."""

    done: deque[Completion] = field(default_factory=deque)
    posts: list[tuple[int, int]] = field(default_factory=list)
    status: int = 0
    later_status: int | None = None
    silent: bool = False
    begun: int = 0
    events: str = ""
    """What was done, in order: p for a post, t for a completion taken."""
    delay: int = 0
    """Polls that find nothing before each completion."""

    def __post_init__(self) -> None:
        self.stamp = time.perf_counter
        self._clock = None
        self._left = self.delay

    def ready(self, _: Any) -> int:
        if self._left or not self.done:
            self._left = max(0, self._left - 1)
            return errno.ENOENT
        self._left = self.delay
        return 0

    def take(self) -> tuple[int, int]:
        taken = self.done.popleft()
        self.events += "t"
        if taken.status:
            self.vendor_err = taken.vendor_err
        return taken.wr_id, taken.status

    def begin(self) -> None:
        self.begun += 1


@dataclass
class QueuePair:
    adapter: Adapter
    number: int

    def post_send(self, head: Any) -> None:
        request, count = head, 0
        while request is not None:
            count += 1
            if request.send_flags & 2 and not self.adapter.silent:  # IBV_SEND_SIGNALED
                self.adapter.done.append(Completion(request.wr_id, self.adapter.status, 0x51))
                if self.adapter.later_status is not None:
                    self.adapter.status = self.adapter.later_status
            request = request.next_wr
        self.adapter.posts.append((self.number, count))
        self.adapter.events += "p"


@pytest.fixture(autouse=True)
def _work_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take work requests that show what they are chained to: those of pyverbs do not."""
    try:
        preload()
    except UndeterminedError as error:
        pytest.skip(str(error))
    module = importlib.import_module("pyverbs.wr")
    monkeypatch.setattr(module, "SendWR", Request)
    monkeypatch.setattr(module, "SGE", Scatter)
    monkeypatch.setattr("kvdiag_probes.posting.compiled_turns", lambda *_: None)


def lanes(adapter: Adapter, count: int = 1) -> list[Lane]:
    return [
        Lane(queue_pair=QueuePair(adapter, i), completions=adapter, local=4096, lkey=1, remote=8192, rkey=2)
        for i in range(count)
    ]


def plan(slots: int, chain: int, depth: int = 16, signal: int | None = None, **changes: Any) -> Plan:
    return Plan(
        operation=Operation.WRITE,
        size=64,
        slots=slots,
        queue_depth=depth,
        chain=chain,
        signal=signal,
        timeout_s=0.05,
        **changes,
    )


def run(adapter: Adapter, wanted: Plan, count: int = 1) -> int:
    made = ChainedPass([lanes(adapter, count)], wanted, "b:1")
    try:
        return len(made.run().latencies_s)
    finally:
        made.close()
        assert Request.open == 0


def test_chains_are_posted_whole_and_each_is_timed() -> None:
    adapter = Adapter()
    assert run(adapter, plan(10, 4)) == 3
    assert adapter.posts == [(0, 4), (0, 4), (0, 2)]


def test_chains_are_dealt_out_to_the_queue_pairs_in_turn() -> None:
    adapter = Adapter()
    assert run(adapter, plan(14, 4), 2) == 4
    assert adapter.posts == [(0, 4), (1, 4), (0, 4), (1, 2)]


@pytest.mark.parametrize(("signal", "timed"), [(1, 12), (2, 6), (4, 3), (8, 2), (12, 1), (100, 1)])
def test_every_nth_message_is_timed_and_always_the_last(signal: int, timed: int) -> None:
    assert run(Adapter(), plan(12, 4, depth=128, signal=signal)) == timed


def test_two_rails_carry_the_same_messages_and_both_are_polled() -> None:
    left, right = Adapter(), Adapter()
    made = ChainedPass([lanes(left), lanes(right)], plan(4, 2), "b:1")
    assert len(made.run().latencies_s) == 4
    made.close()
    assert left.posts == right.posts == [(0, 2), (0, 2)]


def test_a_flag_goes_before_or_after_the_payload_and_the_last_of_all_completes() -> None:
    before, after = Adapter(), Adapter()
    assert run(before, plan(4, 2, flag_offset=4096)) == 2
    assert before.posts == [(0, 3), (0, 2)]
    assert run(after, plan(4, 2, flag_offset=4096, flag_last=True)) == 2
    assert after.posts == [(0, 2), (0, 3)]


def test_the_first_error_is_told_and_nothing_waits_for_the_rest() -> None:
    with pytest.raises(CompletionError, match=r"RDMA WRITE failed with REM_ACCESS_ERR \(10, vendor 0x51\)") as caught:
        run(Adapter(status=10), plan(4, 2))
    assert caught.value.status == 10


def test_a_flushed_request_never_leads_where_the_error_comes_with_it() -> None:
    with pytest.raises(CompletionError, match=r"failed with RETRY_EXC_ERR \(12, vendor 0x51\)"):
        run(Adapter(status=5, later_status=12), plan(4, 2, signal=1))


def test_what_is_in_flight_on_all_queue_pairs_together_is_bounded() -> None:
    adapter = Adapter(silent=True)
    with pytest.raises(UnavailableError):
        run(adapter, plan(16, 1, depth=1, in_flight=6), 16)
    assert [lane for lane, _ in adapter.posts] == [0, 1, 2, 3, 4, 5]
    done = Adapter()
    assert run(done, plan(40, 1, depth=2, in_flight=6), 16) == 40
    assert {lane for lane, _ in done.posts} == set(range(16))


@pytest.mark.parametrize("signal", [1, 4, 8])
def test_a_bound_too_small_for_one_completion_blocks_nothing(signal: int) -> None:
    adapter = Adapter()
    run(adapter, plan(16, 1, depth=16, in_flight=1, signal=signal), 2)
    assert len(adapter.posts) == 16


@pytest.mark.parametrize("wanted", [plan(4, 2), plan(4, 1, depth=1)])
def test_no_completion_ends_in_bounded_time(wanted: Plan) -> None:
    with pytest.raises(UnavailableError, match=r"no completion within 0\.05 s"):
        run(Adapter(silent=True), wanted)


def test_one_message_at_a_time_is_posted_when_the_one_before_is_done() -> None:
    adapter = Adapter(delay=200)
    assert run(adapter, plan(5, 1, depth=1)) == 5
    assert adapter.events == "ptptptptpt"
    assert adapter.begun == 1


def test_one_failed_message_is_told_in_the_same_words() -> None:
    with pytest.raises(CompletionError, match=r"RDMA WRITE failed with REM_ACCESS_ERR \(10, vendor 0x51\)"):
        run(Adapter(status=10), plan(4, 1, depth=1))


@pytest.mark.parametrize(("depth", "chain"), [(1, 1), (16, 4)])
def test_without_recording_a_pass_has_its_whole_time_alone(
    monkeypatch: pytest.MonkeyPatch, depth: int, chain: int
) -> None:
    monkeypatch.setattr(ChainedPass, "recording", False)
    made = ChainedPass([lanes(Adapter())], plan(8, chain, depth=depth), "b:1")
    done = made.run()
    made.close()
    assert done.latencies_s == [done.elapsed_s]


def test_room_is_filled_before_the_next_completion_is_looked_for() -> None:
    """Reaping all first would let the queue run dry."""
    adapter = Adapter()
    assert run(adapter, plan(5, 1, depth=2)) == 5
    assert adapter.events == "pptptptptt"


def test_the_depth_bounds_what_is_outstanding() -> None:
    adapter = Adapter(silent=True)
    with pytest.raises(UnavailableError):
        run(adapter, plan(64, 4, depth=8))
    assert adapter.posts == [(0, 4), (0, 4)]


@pytest.mark.parametrize(
    ("tick_s", "depth", "delay", "sleeps"), [(1e-3, 16, 100, True), (1e-9, 16, 100, False), (1e-3, 1, 8000, False)]
)
def test_it_sleeps_only_while_the_queue_will_not_run_dry(
    monkeypatch: pytest.MonkeyPatch, tick_s: float, depth: int, delay: int, sleeps: bool
) -> None:
    """On a slow path with a full queue; a fast one, or a single message, is polled for."""
    done = {"sleep": 0, "yield": 0, "ticks": 0}

    def count(what: str) -> int:
        done[what] += 1
        return done[what]

    fake_time = SimpleNamespace(perf_counter=lambda: count("ticks") * tick_s, sleep=lambda _: count("sleep"))
    monkeypatch.setattr(posting, "time", fake_time)
    monkeypatch.setattr(waiting, "time", fake_time)
    monkeypatch.setattr(waiting, "os", SimpleNamespace(sched_yield=lambda: count("yield")))
    made = ChainedPass([lanes(Adapter(delay=delay))], replace(plan(40, 1, depth=depth), timeout_s=60.0), "b:1")
    made.run()
    made.close()
    assert (done["sleep"] > 0) == sleeps
    # Until the first completion nothing is known of the rate: it is polled for.
    assert done["yield"] > 0
