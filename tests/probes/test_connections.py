import errno
import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from kvdiag.derive.intervals import metric
from kvdiag.errors import KvdiagError, StoppedError, UnavailableError, UndeterminedError
from kvdiag.model.probe import ProbeSettings
from kvdiag.model.probe_connections import (
    ActiveRow,
    ConnectionsSettings,
    Exhaustion,
    SetupRow,
    SharingKind,
    SharingRow,
)
from kvdiag_probes import connections
from kvdiag_probes.budget import Budget
from kvdiag_probes.connections_probe import Local, measure_local
from kvdiag_probes.control.address import Address
from kvdiag_probes.control.client import LostAgentError
from kvdiag_probes.control.credential import Credential
from kvdiag_probes.gid import Choice
from kvdiag_probes.ib_pairs import PairRefusedError
from kvdiag_probes.session import ProbeOptions
from kvdiag_probes.sharing import Opener, openers, probe_sharing

CHOICE = Choice(device="x0", port=1, gid_index=1, gid="::ffff:10.0.0.1", type="RoCE v2", link_layer="Ethernet")


class Adapter:
    """Has room for so many queue pairs, and follows the state machine of an RC queue pair."""

    def __init__(self, room: int = 1000, *, shared: bool = True) -> None:
        self.room, self.has_shared = room, shared
        self.states: dict[int, str] = {}
        self.shared_queues: set[int] = set()
        self.most = 0
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self.fail_at = ""

    def create(self, shared: Any = None) -> int:
        with self._lock:
            if len(self.states) >= self.room:
                raise PairRefusedError("create_qp", errno.ENOMEM)
            number = next(self._numbers)
            self.states[number] = "RESET"
            self.most = max(self.most, len(self.states))
            return number

    def _step(self, pair: int, before: str, after: str) -> None:
        if self.fail_at == after:
            raise PairRefusedError(after.lower(), errno.ETIMEDOUT)
        assert self.states[pair] == before
        self.states[pair] = after

    def to_init(self, pair: int) -> None:
        self._step(pair, "RESET", "INIT")

    def to_rtr(self, pair: int, other: int) -> None:
        assert self.states[other] == "INIT"
        self._step(pair, "INIT", "RTR")

    def to_rts(self, pair: int) -> None:
        self._step(pair, "RTR", "RTS")

    def destroy(self, pair: int) -> None:
        with self._lock:
            del self.states[pair]

    def shared_receive_queue(self) -> int:
        if not self.has_shared:
            raise PairRefusedError("create_srq", errno.EOPNOTSUPP)
        self.shared_queues.add(next(self._numbers))
        return max(self.shared_queues)

    def destroy_shared(self, shared: int) -> None:
        self.shared_queues.remove(shared)


def settings(**changes: Any) -> ConnectionsSettings:
    base: dict[str, Any] = {
        "device": "x0",
        "rounds": 5,
        "threads": (1, 4),
        "pairs_per_thread": 8,
        "most_pairs": 100,
        "active": (),
        "size_bytes": 1,
        "iterations": 1,
        "prefill": 1,
        "decode": 1,
        "pairs_per_link": 1,
    }
    return ConnectionsSettings(**(base | changes))


def measure(adapter: Adapter, keep: Callable[[Local], None] = lambda _: None, **changes: Any) -> Any:
    @contextmanager
    def opened(_: Choice) -> Iterator[tuple[Adapter, int]]:
        yield adapter, adapter.room

    return measure_local(CHOICE, settings(**changes), lambda _: None, opened, lambda _: {}, keep)


def test_every_step_is_timed_and_nothing_is_left() -> None:
    adapter = Adapter()
    found = measure(adapter)
    assert [row.step for row in found.setup] == ["create", "init", "rtr", "rts", "destroy"]
    assert all(row.seconds.samples == 5 and row.seconds.value > 0 for row in found.setup)
    shape = [(row.threads, row.pairs, row.shared_receive_queue) for row in found.creation]
    assert shape == [(1, 8, False), (4, 32, False), (1, 8, True), (4, 32, True)]
    assert found.missing == [] and adapter.states == {} and adapter.shared_queues == set()


def test_exhaustion_is_found_and_released() -> None:
    adapter = Adapter(room=37)
    found = measure(adapter, threads=(1, 8))
    assert found.exhaustion == Exhaustion(max_qp=37, made=37, made_again=37, refusal="ENOMEM")
    assert adapter.most == 37 and adapter.states == {}
    assert found.missing[0].startswith("8 threads, 64 queue pairs: refused: create_qp: ")
    free = measure(Adapter(room=1000)).exhaustion
    assert (free.made, free.refusal) == (100, None)


def test_a_device_without_shared_receive_queues_is_measured_without() -> None:
    found = measure(Adapter(shared=False))
    assert [row.shared_receive_queue for row in found.creation] == [False, False]
    assert "with a shared receive queue" in found.missing[0] and "create_srq" in found.missing[0]


def test_what_was_measured_here_before_ctrl_c_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: object, **__: object) -> None:
        raise StoppedError("interrupted")

    monkeypatch.setattr(connections, "time_creation", stop)
    kept: list[Local] = []
    with pytest.raises(StoppedError):
        measure(Adapter(), kept.append)
    (found,) = kept
    assert [row.step for row in found.setup] == ["create", "init", "rtr", "rts", "destroy"] and found.exhaustion.made


@pytest.mark.parametrize("step", ["INIT", "RTR", "RTS"])
def test_a_pair_that_cannot_be_connected_says_at_which_step(step: str) -> None:
    adapter = Adapter()
    adapter.fail_at = step
    with pytest.raises(UndeterminedError, match=f"no queue pair can be connected .*{step.lower()}: "):
        measure(adapter)
    assert adapter.states == {}


def test_the_advice_counts_both_sides_and_the_room() -> None:
    steps = ("create", "init", "rtr", "rts", "destroy")
    setup = [SetupRow(step=step, seconds=metric("s", "seconds", "lower", [1e-3] * 5)) for step in steps]  # type: ignore[arg-type]
    rate = metric("b", "bytes_per_second", "higher", [1.0] * 5)
    active = [ActiveRow(queue_pairs=n, queue_depth=1, bandwidth=rate, of_best=1 / n) for n in (1, 4, 16)]
    room = Exhaustion(max_qp=1000, made=64, made_again=64, refusal=None)
    advice = connections.advise(setup, room, active, (), prefill=2, decode=3, pairs_per_link=2)
    assert (advice.prefill_pairs, advice.decode_pairs, advice.fits) == (6, 4, True)
    assert advice.setup_s == pytest.approx(6 * 4e-3)
    assert "16 active queue pairs reached 6% of the best" in advice.advice
    assert advice.most_peers == 32 and "64 were made here at once, of 32 peers; max_qp says 1000" in advice.advice
    assert "about 24.000 ms to set up" in advice.advice
    full = Exhaustion(max_qp=1000, made=64, made_again=64, refusal="ENOMEM")
    crowded = connections.advise(setup, full, (), (), prefill=2, decode=33, pairs_per_link=2)
    assert crowded.fits is False and "link groups of at most 32 instances" in crowded.advice
    assert "neither XRC nor DC is offered" in crowded.advice
    offered = SharingRow(kind="dc", status="offered", create=None, reason=None)
    crowded = connections.advise(setup, full, (), (offered,), prefill=2, decode=33, pairs_per_link=2)
    assert "share them by DC" in crowded.advice
    # Nothing refused, and more are needed than were made: neither yes nor no, unless the device itself states fewer.
    beyond = connections.advise(setup, room, (), (), prefill=2, decode=400, pairs_per_link=2)
    assert beyond.fits is None and "beyond 64 nothing was tried: give --most 800" in beyond.advice
    assert "about 3.200 s to set up" in beyond.advice and beyond.most_peers == 32
    over = connections.advise(setup, room, (), (), prefill=2, decode=501, pairs_per_link=2)
    assert over.fits is False and "link groups of at most 500 instances" in over.advice


class Thing:
    closed = 0

    def close(self) -> None:
        Thing.closed += 1


def kind(failing: Exception | None = None, at: str = "make") -> Opener:
    @contextmanager
    def opened(device: str) -> Iterator[Callable[[], Thing]]:
        assert device == "x0"
        if failing and at == "open":
            raise failing

        def make() -> Thing:
            if failing:
                raise failing
            return Thing()

        yield make

    return opened


def test_each_way_of_sharing_is_tried_and_what_refuses_it_is_told_apart() -> None:
    Thing.closed = 0
    unsupported = PairRefusedError("ibv_open_xrcd", errno.EOPNOTSUPP)
    assert connections_sharing({"srq": kind(), "xrc": kind(unsupported, "open"), "dc": kind(NO_PYVERBS, "open")}) == [
        ("srq", "offered", None),
        ("xrc", "not_offered", "ibv_open_xrcd: Operation not supported"),
        ("dc", "not_observable", "no pyverbs"),
    ]
    assert Thing.closed == 5
    full = PairRefusedError("ibv_create_qp_ex", errno.ENOMEM)
    assert connections_sharing({"xrc": kind(full)}) == [
        ("xrc", "refused", "ibv_create_qp_ex: Cannot allocate memory"),
    ]


def test_dynamic_connections_are_looked_for_with_their_driver_only() -> None:
    (row,) = probe_sharing("x0", 5, {"dc": openers("rdma_rxe")["dc"]})
    assert row.status == "not_offered"
    assert row.reason == "only mlx5_core has it, x0 is driven by rdma_rxe: Operation not supported"


NO_PYVERBS = UndeterminedError("no pyverbs")


def connections_sharing(openers: dict[SharingKind, Opener]) -> list[tuple[str, str, str | None]]:
    rows = probe_sharing("x0", 5, openers)
    assert all(row.create is None or row.create.samples == 5 for row in rows)
    return [(row.kind, row.status, row.reason) for row in rows]


class Wire:
    """Runs of a probe that reach 1 GB/s, and fail from so many queue pairs on."""

    def __init__(self, most: int, error: KvdiagError) -> None:
        self.most, self.error = most, error
        self.counts: list[int] = []

    def run(self, options: ProbeOptions) -> Any:
        settings = options.settings
        self.counts.append(settings.queue_pairs)
        assert settings.queue_depth == max(1, 8 // settings.queue_pairs)
        assert settings.in_flight == 8
        if settings.queue_pairs > self.most:
            raise self.error
        result = SimpleNamespace(bytes_per_second=1e9 / settings.queue_pairs)
        return SimpleNamespace(results=[result], proof=SimpleNamespace(payload_bytes=1), ends="ends")


def active(wire: Wire) -> connections.Active:
    settings = ProbeSettings(
        kind="bandwidth",
        operation="write",
        transport="rdma",
        sizes=(64,),
        queue_depth=8,
        iterations=1,
        duration_s=None,
        warmup=0,
    )
    options = ProbeOptions(
        peer=Address("h", 1), credential=Credential(token="t"), settings=settings, timeout_s=1, progress=lambda _: None
    )
    return connections.time_active(options, (1, 4, 16), 8, 5, Budget(None), wire.run)


def test_a_number_of_queue_pairs_that_fails_is_left_out_and_the_others_are_kept() -> None:
    wire = Wire(4, UnavailableError("RETRY_EXC_ERR"))
    found = active(wire)
    assert [(row.queue_pairs, row.bandwidth.samples, row.of_best) for row in found.rows] == [(1, 5, 1.0), (4, 5, 0.25)]
    assert list(found.failures) == [16] and wire.counts.count(16) == 1


def test_with_the_agent_gone_nothing_more_is_tried() -> None:
    wire = Wire(1, LostAgentError("lost the agent"))
    found = active(wire)
    assert wire.counts == [1, 4] and [row.queue_pairs for row in found.rows] == [1]
    with pytest.raises(UnavailableError, match="down"):
        active(Wire(0, UnavailableError("down")))


def test_ctrl_c_ends_it_and_keeps_what_was_measured() -> None:
    wire = Wire(1, StoppedError("interrupted"))
    found = active(wire)
    assert wire.counts == [1, 4] and [row.queue_pairs for row in found.rows] == [1]
    assert [type(error) for error in found.failures.values()] == [StoppedError]
