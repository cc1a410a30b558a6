"""A ping-pong between two ends in one process: what one posts lies in the other's memory."""

import importlib
from collections import deque
from collections.abc import Iterator
from typing import Any

import pytest

from kvdiag.errors import InputError, UnavailableError, UndeterminedError
from kvdiag_probes import pattern
from kvdiag_probes.completion import CompletionError
from kvdiag_probes.completion_queue import Completion
from kvdiag_probes.control.messages import PassRequest
from kvdiag_probes.control.passes import PassRunner
from kvdiag_probes.corruption import classify
from kvdiag_probes.datapath import Operation, Plan
from kvdiag_probes.errors import PayloadMismatchError
from kvdiag_probes.measure import Amount, Reverse, Runner
from kvdiag_probes.ping_pong import Awaited, expect
from kvdiag_probes.posting import ChainedPass, Lane
from kvdiag_probes.verbs import preload
from tests.probes.test_posting import Adapter

HALF = 1 << 15
PLAN = Plan(operation=Operation.WRITE, size=64, slots=4, queue_depth=1, chain=1, timeout_s=0.2)


class Scatter:
    def __init__(self, address: int, length: int, lkey: int) -> None:
        self.address, self.length, self.lkey = address, length, lkey

    def close(self) -> None: ...


class Request:
    def __init__(self, **given: Any) -> None:
        self.part, self.wr_id = given["sg"][0], 0

    def set_wr_rdma(self, rkey: int, address: int) -> None:
        self.remote, self.rkey = address, rkey

    def close(self) -> None: ...


@pytest.fixture(autouse=True)
def _work_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        preload()
    except UndeterminedError as error:
        pytest.skip(str(error))
    module = importlib.import_module("pyverbs.wr")
    monkeypatch.setattr(module, "SendWR", Request)
    monkeypatch.setattr(module, "SGE", Scatter)
    monkeypatch.setattr("kvdiag_probes.posting.compiled_turns", lambda *_: None)


class End:
    """Memory, and a queue pair whose messages are in the other end's memory when they are posted."""

    def __init__(self) -> None:
        self.memory = bytearray(2 * HALF + 64)
        self.adapter = Adapter(done=deque())
        self.other = self
        self.status = 0
        self.deaf = False
        self.spoils: int | None = None
        self.posted: list[int] = []

    @property
    def buffer(self) -> memoryview:
        return memoryview(self.memory)

    def post_send(self, request: Any) -> None:
        part = request.part
        self.posted.append(part.address)
        self.adapter.events += "p"
        self.adapter.done.append(Completion(request.wr_id, self.status))
        if not self.status and not self.deaf:
            self.other.memory[request.remote : request.remote + part.length] = self.memory[
                part.address : part.address + part.length
            ]
            if self.spoils is not None:
                self.other.memory[self.spoils] ^= 4

    def prepare(self, plan: Plan) -> ChainedPass:
        lane = Lane(queue_pair=self, completions=self.adapter, local=0, lkey=1, remote=0, rkey=2)
        return ChainedPass([[lane]], plan, "b:1")

    def push(self, start: int, stop: int) -> None: ...

    def pull(self, start: int, stop: int) -> None: ...

    def close(self) -> None: ...


class Far:
    """The other end as its agent shows it."""

    def __init__(self, end: End) -> None:
        self.end = end
        self.passes = PassRunner(lambda: end.buffer, end.prepare)

    def fill(self, seed: int, size: int, offset: int = 0) -> None:
        pattern.fill(self.end.buffer[offset : offset + size], seed)

    def verify(self, seed: int, size: int) -> tuple[str, str | None]:
        raise AssertionError

    def check(self, seed: int, plan: Plan, stale: int | None, immediates: int) -> tuple[str, str | None]:
        view = self.end.buffer[plan.base : plan.base + plan.bytes]
        wrong = classify(view, seed, plan.size, stale)
        return pattern.digest(view), None if wrong is None else str(wrong)

    def receive(self, plan: Plan) -> None: ...

    def arm(self, plan: Plan, flag: int, flag_offset: int, watched_seed: int | None = None) -> None:
        raise AssertionError("a ping-pong has no flag")

    def answer(self, plan: Plan, seed: int) -> None:
        self.passes.arm(
            PassRequest(
                flag=0,
                flag_offset=0,
                size=plan.size,
                slots=plan.slots,
                queue_depth=plan.queue_depth,
                base=plan.base,
                timeout_s=plan.timeout_s,
                answer=True,
                seed=seed,
            )
        )

    def collect(self) -> tuple[float, str | None]:
        answer = self.passes.collect()
        return answer.elapsed_s, answer.error

    def finish(self) -> float:
        elapsed_s, error = self.collect()
        assert error is None
        return elapsed_s


class Receives:
    def post(self, count: int, chain: int) -> None: ...

    def reap(self, count: int, chain: int, timeout_s: float) -> str | None: ...


@pytest.fixture
def ends() -> Iterator[tuple[End, End, Runner]]:
    near, peer = End(), End()
    near.other, peer.other = peer, near
    far = Far(peer)
    reverse = Reverse(base=HALF, flag_offset=2 * HALF, receives=Receives())
    runner = Runner(
        path=near,
        far=far,
        peer="b:1",
        operation=Operation.WRITE,
        queue_depth=1,
        timeout_s=5.0,
        reverse=reverse,
        ping_pong=True,
    )
    yield near, peer, runner
    far.passes.close()


@pytest.mark.parametrize("size", [1, 64, 500])
def test_every_message_is_answered_and_both_directions_are_verified(ends: tuple[End, End, Runner], size: int) -> None:
    near, peer, runner = ends
    result = runner.measure(size, Amount(iterations=40, duration_s=None, warmup=8))
    assert (result.iterations, result.bytes) == (40, 2 * 40 * size)
    assert result.latency_s.count == 40
    assert near.posted[8:] == [slot * size for slot in range(40)]
    assert peer.posted[8:] == [HALF + slot * size for slot in range(40)]
    # A sample is half of a round trip, and the round trips are all of the time.
    assert result.latency_s.mean * 2 * 40 <= result.seconds


def test_an_answer_with_a_wrong_byte_is_found(ends: tuple[End, End, Runner]) -> None:
    _, peer, runner = ends
    peer.spoils = HALF + 5
    with pytest.raises(PayloadMismatchError, match="the peer's WRITE delivered wrong bytes: bit flip"):
        runner.measure(64, Amount(iterations=1, duration_s=None, warmup=0))


@pytest.mark.parametrize("serves", [True, False])
def test_a_completion_is_taken_while_the_next_message_is_under_way(*, serves: bool) -> None:
    end = End()
    end.deaf = True
    end.memory[HALF] = 1
    end.prepare(PLAN).exchange(end.buffer, [Awaited(HALF, 1)] * 4, serves=serves)
    # A queue pair has room for two, and every completion is taken in the end.
    assert end.adapter.events == "pptptptt"


def test_a_message_that_fails_is_told_at_once_though_no_answer_comes() -> None:
    end = End()
    end.status = 12
    with pytest.raises(CompletionError, match=r"RETRY_EXC_ERR \(12\)"):
        end.prepare(PLAN).exchange(end.buffer, [Awaited(HALF, 1)] * 4, serves=True)


def test_a_peer_that_does_not_answer_is_given_up_in_bounded_time() -> None:
    end = End()
    end.deaf = True
    with pytest.raises(UnavailableError, match=r"no completion within 0\.2 s"):
        end.prepare(PLAN).exchange(end.buffer, [Awaited(HALF, 1)] * 4, serves=True)
    assert end.posted == [0]


def test_what_is_awaited_is_unset_first_and_is_what_the_pattern_ends_in() -> None:
    buffer = memoryview(bytearray(1024))
    pattern.fill(buffer[100:], 7)
    wanted = expect(buffer, 7, 33, 5, 100)
    assert [one.at for one in wanted] == [100 + 33 * slot + 32 for slot in range(5)]
    assert all(buffer[one.at] != one.value for one in wanted)
    pattern.fill(buffer[100:], 7)
    assert all(buffer[one.at] == one.value for one in wanted)


@pytest.mark.parametrize(("base", "depth"), [(0, 1), (255, 1), (256, 2)])
def test_answers_that_would_overwrite_what_they_answer_are_refused(base: int, depth: int) -> None:
    end = End()
    passes = PassRunner(lambda: end.buffer, end.prepare)
    with pytest.raises(InputError, match="answers go one at a time, from behind the messages"):
        passes.arm(
            PassRequest(flag=0, flag_offset=0, size=64, slots=4, queue_depth=depth, base=base, timeout_s=1, answer=True)
        )
