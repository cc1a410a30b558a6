"""Every stage of a probe gets its own time and no other's: a whole run over fakes, on a clock that only work moves."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Self

import pytest

from kvdiag.errors import KvdiagError
from kvdiag.model.missing import Missing
from kvdiag.model.probe import ProbeDurations, ProbeSettings
from kvdiag_probes import numa, pattern, proof, rails, session, verbs
from kvdiag_probes.control.address import Address
from kvdiag_probes.control.credential import Credential
from kvdiag_probes.control.messages import (
    FillRequest,
    Hello,
    OpenAnswer,
    OpenRequest,
    QueuePairAddress,
    VerifyAnswer,
    VerifyRequest,
)
from kvdiag_probes.datapath import Pass, Plan
from kvdiag_probes.gid import Choice
from kvdiag_probes.rdma_path import RdmaPath
from kvdiag_probes.stages import Stages

ADDRESS = QueuePairAddress(qpn=7, psn=1, gid="::1", lid=0, mtu=1024, rd_atomic=16, rkey=1, address_text="4096")
CHOICE = Choice(device="rdma0", port=1, gid_index=0, gid="::1", type="RoCE v2", link_layer="Ethernet")
STAGES = [
    "control",
    "load",
    "discover",
    "connect",
    "allocate",
    "register",
    "peer_discover",
    "peer_allocate",
    "peer_register",
    "peer_connect",
    "prepare",
    "first_transfer",
    "warmup",
    "transfer",
    "verify",
    "prove",
    "close",
]
DELAY_S = 5.0


class World:
    """A clock, the peer's memory, and how long each kind of work takes: one second, or more where it is delayed."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.delays: dict[str, float] = {}
        self.far = bytearray(1 << 16)
        self.passes = 0

    def work(self, stage: str) -> float:
        taken_s = 1.0 + self.delays.get(stage, 0.0)
        self.now_s += taken_s
        return taken_s

    def clock(self) -> float:
        return self.now_s


class Client:
    """The control channel; the agent's own steps are inside the request that asks for them."""

    local_address = ""
    moved_bytes = (0, 0)

    def __init__(self, world: World) -> None:
        self.world = world

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None: ...

    def hello(self) -> Hello:
        self.world.work("control")
        return Hello(
            protocol=1, version="0", host="b", max_buffer_bytes=1 << 20, max_sessions=1, session_idle_s=9, time_s=0
        )

    def open(self, request: OpenRequest) -> OpenAnswer:
        assert request.queue_pair is not None
        self.world.work("control")
        work = self.world.work
        return OpenAnswer(
            session="s",
            allocate_s=work("peer_allocate"),
            register_s=work("peer_register"),
            setup_s=work("peer_connect"),
            discover_s=work("peer_discover"),
            device="rdma1",
            queue_pair=ADDRESS,
        )

    def fill(self, _: str, request: FillRequest) -> None:
        raise AssertionError(request)

    def verify(self, _: str, request: VerifyRequest) -> VerifyAnswer:
        self.world.work("verify")
        view = memoryview(self.world.far)[: request.size]
        wrong = pattern.find_mismatch(view, request.seed)
        return VerifyAnswer(digest=pattern.digest(view), mismatch=None if wrong is None else str(wrong))

    def close_session(self, _: str) -> None:
        self.world.work("close")


class Region:
    note = "host memory"

    def push(self, start: int, stop: int) -> None: ...

    def pull(self, start: int, stop: int) -> None: ...


class Endpoint:
    choice, address, path_mtu, timestamps, region = CHOICE, ADDRESS, 1024, "", Region()
    world: World

    def __init__(self, choice: Choice, size: int, queue_depth: int, options: Any) -> None:
        assert (choice, queue_depth, options.queue_pairs) == (CHOICE, 4, 1)
        self.buffer = memoryview(bytearray(size))
        self.allocate_s, self.register_s = self.world.work("allocate"), self.world.work("register")

    def connect(self, _: QueuePairAddress) -> None:
        self.world.work("connect")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.world.work("close")


class Path(RdmaPath):
    def prepare(self, plan: Plan) -> Any:
        world = Endpoint.world
        world.work("prepare")
        return Prepared(world, self.buffer, plan)


class Prepared:
    def __init__(self, world: World, buffer: memoryview, plan: Plan) -> None:
        self.world, self.buffer, self.plan = world, buffer, plan

    def run(self) -> Pass:
        stage = ("first_transfer", "warmup", "transfer")[min(self.world.passes, 2)]
        self.world.passes += 1
        elapsed_s = self.world.work(stage)
        self.world.far[: self.plan.bytes] = self.buffer[: self.plan.bytes]
        return Pass(elapsed_s, [elapsed_s])

    def close(self) -> None: ...


@contextmanager
def _unpinned(_: str) -> Iterator[str]:
    yield ""


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    made = World()
    Endpoint.world = made

    def read(*_: object) -> Missing:
        made.work("prove")
        return Missing("a fake has none")

    def choose(*_: object, **__: object) -> Choice:
        made.work("discover")
        return CHOICE

    replaced: list[tuple[Any, str, Callable[..., object]]] = [
        (time, "perf_counter", made.clock),
        (session, "AgentClient", lambda *_: Client(made)),
        (verbs, "preload", lambda: made.work("load")),
        (verbs, "Endpoint", Endpoint),
        (rails, "RdmaPath", Path),
        (rails, "choose", choose),
        (numa, "beside", _unpinned),
        (proof, "read_counters", read),
        (proof, "read_objects", read),
    ]
    for owner, name, replacement in replaced:
        monkeypatch.setattr(owner, name, replacement)
    return made


def durations() -> ProbeDurations:
    settings = ProbeSettings(
        kind="bandwidth",
        operation="write",
        transport="rdma",
        sizes=(512,),
        queue_depth=4,
        iterations=20,
        duration_s=None,
        warmup=4,
    )
    options = session.ProbeOptions(
        peer=Address("127.0.0.1", 1), credential=Credential(token="t" * 20), settings=settings, timeout_s=1
    )
    return session.run_probe(options).durations


def by_name(found: ProbeDurations) -> dict[str, float]:
    return {one.stage: one.seconds for one in found.stages}


@pytest.mark.parametrize("stage", STAGES)
def test_a_delay_is_charged_to_its_own_stage_and_the_stages_add_up(world: World, stage: str) -> None:
    plain = by_name(durations())
    assert set(plain) == {*STAGES, "other"}
    world.passes = 0
    world.delays[stage] = DELAY_S
    found = durations()
    delayed = by_name(found)
    grown = {name: seconds - plain[name] for name, seconds in delayed.items() if seconds != pytest.approx(plain[name])}
    assert list(grown) == [stage]
    # A stage with several steps is delayed in each.
    assert grown[stage] % DELAY_S == pytest.approx(0) and grown[stage] >= DELAY_S
    assert sum(delayed.values()) == pytest.approx(found.total_s)
    assert plain["other"] == delayed["other"] == 0


def test_the_named_durations_are_those_of_the_stages(world: World) -> None:
    found = durations()
    stages = by_name(found)
    assert found.register_s == stages["register"] == 1
    assert found.peer_register_s == stages["peer_register"] == 1
    assert found.first_transfer_s == stages["first_transfer"] == 1
    assert found.steady_transfer_s == stages["transfer"]
    assert found.total_s == world.now_s - 100
    # Set-up is the exchange and both ends' queue pairs: no buffer, and no search for a device.
    assert found.connect_s == stages["connect"] + stages["peer_connect"] + 1


def test_a_run_that_fails_fails_with_its_own_error(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: Client) -> Hello:
        raise KvdiagError("no")

    monkeypatch.setattr(Client, "hello", fail)
    with pytest.raises(KvdiagError, match="no"):
        durations()


class Ticks:
    """A clock that goes on by one at each look."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


def test_a_stage_inside_another_takes_its_time_from_it() -> None:
    clock = Ticks()
    stages = Stages(clock)
    with stages.stage("outer"):
        clock.now += 10
        with stages.stage("inner"):
            clock.now += 100
        clock.now += 20
    found = {one.stage: one.seconds for one in stages.times()}
    assert found == {"outer": 32, "inner": 101, "other": 2}
    assert stages.total_s == sum(found.values())


@pytest.mark.parametrize(("moved", "expected"), [(4.0, 4.0), (1000.0, 11.0), (-1.0, 0.0)])
def test_no_more_is_moved_than_was_measured(moved: float, expected: float) -> None:
    clock = Ticks()
    stages = Stages(clock)
    with stages.stage("all"):
        clock.now += 10
        stages.move("all", "part", moved)
    found = {one.stage: one.seconds for one in stages.times()}
    assert found["part"] == expected
    assert sum(found.values()) == stages.total_s
