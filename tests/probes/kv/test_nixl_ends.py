"""What surrounds NIXL, with a worker that is not there: messages, memory, and the proof."""

import base64
import mmap
import os
from collections.abc import Mapping
from typing import Any

import pytest

from kvdiag.errors import InputError, UnavailableError
from kvdiag.model.rdma import PortCounters, RdmaCounters
from kvdiag_probes.control.messages import OpenRequest, PassRequest, ReceiveRequest, ServeRequest, VerifyRequest
from kvdiag_probes.datapath import Operation, Transport
from kvdiag_probes.kv import nixl_path, nixl_target, nixl_worker
from kvdiag_probes.kv.nixl_path import NixlKvPath
from kvdiag_probes.kv.nixl_target import NixlTarget


class Child:
    """A worker's parent end: notes what it is asked for; `memory` is what it would have registered."""

    def __init__(self, name: str, size: int, *, loopback: bool, fd: int | None = None) -> None:
        assert fd is not None
        self.memory = mmap.mmap(os.dup(fd), size)
        self.loopback = loopback
        self.calls: list[tuple[Any, ...]] = []
        self.closed = False

    def ready(self) -> None:
        self.calls.append(("ready",))

    def call(self, *call: Any) -> Any:
        self.calls.append(call)
        if call == ("connect", b"refused", 0):
            raise UnavailableError("NIXL: no such agent")
        return (b"mine", 1 << 63) if call == ("endpoint",) else None

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def children(monkeypatch: pytest.MonkeyPatch) -> list[Child]:
    made: list[Child] = []

    def make(*arguments: Any, **named: Any) -> Child:
        made.append(Child(*arguments, **named))
        return made[-1]

    monkeypatch.setattr(nixl_target, "NixlChild", make)
    return made


def asked(metadata: bytes) -> OpenRequest:
    return OpenRequest(transport=Transport.NIXL, size=8192, nixl_metadata=base64.b64encode(metadata).decode())


def test_the_buffer_of_the_session_is_the_workers_memory(children: list[Child]) -> None:
    target = NixlTarget(asked(b"theirs"), "10.0.0.2")
    target.buffer[:4] = b"data"
    (child,) = children
    assert child.memory[:4] == b"data" and not child.loopback
    assert child.calls == [("ready",), ("endpoint",), ("connect", b"theirs", 0)]
    answer = target.describe("s")
    assert answer.nixl_metadata == base64.b64encode(b"mine").decode() and answer.nixl_address == str(1 << 63)
    target.serve(ServeRequest(seconds=5))
    assert child.calls[-1] == ("serve", 5)
    target.close()
    assert child.closed


def test_a_metadata_that_nixl_refuses_leaves_no_process(children: list[Child]) -> None:
    with pytest.raises(UnavailableError, match="no such agent"):
        NixlTarget(asked(b"refused"), "127.0.0.1")
    assert children[0].closed and children[0].loopback


def test_requests_that_make_no_sense_over_nixl_are_refused(children: list[Child]) -> None:
    with pytest.raises(InputError, match="needs the initiator's nixl_metadata"):
        NixlTarget(OpenRequest(transport=Transport.NIXL, size=1), "127.0.0.1")
    with pytest.raises(InputError, match="nixl_metadata: "):
        NixlTarget(OpenRequest(transport=Transport.NIXL, size=1, nixl_metadata="?"), "127.0.0.1")
    assert children == []
    target = NixlTarget(asked(b"theirs"), "127.0.0.1")
    with pytest.raises(InputError, match="runs no passes"):
        target.arm(PassRequest(flag=0, flag_offset=0, size=1, slots=1, timeout_s=1))
    with pytest.raises(InputError, match="runs no passes"):
        target.collect()
    with pytest.raises(InputError, match="no immediate data"):
        target.receive(ReceiveRequest(count=1, chain=1))
    with pytest.raises(InputError, match="no immediate data"):
        target.reap(VerifyRequest(seed=0, size=1, immediates=1))


class Sockets:
    """A worker that tells what its TCP connections moved."""

    def __init__(self, transports: str, sent: int, received: int) -> None:
        self._told = transports, sent, received

    def call(self, method: str) -> tuple[str, int, int]:
        assert method == "sockets"
        return self._told


def ports(sent: int, received: int) -> RdmaCounters:
    words = {"port_xmit_data": sent // 4, "port_rcv_data": received // 4}
    port = PortCounters(device="mlx5_0", port=1, counters=words, hw_counters={}, unreadable={})
    return RdmaCounters(ports=(port,))


@pytest.mark.parametrize(
    ("transports", "sent", "received", "status"),
    [
        ("rc", 1000, 2000, "proved"),
        ("rc,cma", 996, 2000, "not_observable"),
        ("rc", 1000, 1996, "not_observable"),
        ("tcp", 1000, 2000, "contradicted"),
    ],
)
def test_where_ucx_uses_rdma_the_ports_prove_both_directions(
    monkeypatch: pytest.MonkeyPatch, transports: str, sent: int, received: int, status: str
) -> None:
    counts = iter((ports(400, 400), ports(400 + sent, 400 + received)))
    monkeypatch.setattr(nixl_path, "read_all_counters", lambda: next(counts))
    path = NixlKvPath(Sockets(transports, 10, 10), None)  # type: ignore[arg-type]
    proof = path.prove({Operation.WRITE: 1000, Operation.READ: 2000})
    assert proof.status == status
    told = [item.value for item in proof.evidence if item.name.startswith("mlx5_0/1 port_")]
    assert told == ([] if transports == "tcp" else [str(sent), str(received)])


def test_a_refused_start_names_what_ucx_was_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UCX_TLS", "rc")
    monkeypatch.setenv("UCX_NET_DEVICES", "mlx5_9:1")
    line = nixl_worker.refusal(RuntimeError("NIXL_ERR_BACKEND"))
    assert line.startswith("NIXL does not start with UCX_TLS=rc UCX_NET_DEVICES=mlx5_9:1: NIXL_ERR_BACKEND; next: ")


@pytest.mark.parametrize(
    ("transports", "sent", "received", "status"),
    [
        ("tcp", 1000, 2000, "proved"),
        ("tcp,cma", 1000, 2000, "proved"),
        ("tcp", 999, 2000, "contradicted"),
        ("tcp", 1000, 1999, "contradicted"),
        ("tcp,cma", 10, 10, "not_observable"),
    ],
)
def test_the_proof_compares_both_directions(transports: str, sent: int, received: int, status: str) -> None:
    moved: Mapping[Operation, int] = {Operation.WRITE: 1000, Operation.READ: 2000}
    path = NixlKvPath(Sockets(transports, sent, received), None)  # type: ignore[arg-type]
    proof = path.prove(moved)
    assert (proof.status, proof.payload_bytes) == (status, 3000)
    assert [item.value for item in proof.evidence] == [str(sent), str(received)]
    assert bool(proof.missing) == (status == "not_observable")


class Line:
    """What a worker sends to its parent, which may be gone."""

    def __init__(self, *, gone: bool) -> None:
        self.sent: list[tuple[str, str]] = []
        self._gone = gone

    def send(self, message: tuple[str, str]) -> None:
        if self._gone:
            raise BrokenPipeError
        self.sent.append(message)


@pytest.mark.parametrize("gone", [False, True])
def test_a_worker_that_does_not_start_says_so_and_ends(monkeypatch: pytest.MonkeyPatch, gone: bool) -> None:
    def refuse(name: str, memory: object) -> None:
        raise RuntimeError("NIXL_ERR_BACKEND")

    def end(code: int) -> None:
        raise SystemExit(code)

    monkeypatch.setattr(nixl_worker, "Worker", refuse)
    monkeypatch.setattr("os._exit", end)
    monkeypatch.setattr("os.dup2", lambda *_: None)
    line = Line(gone=gone)
    with pytest.raises(SystemExit) as ended:
        nixl_worker.main(line, "target", 4096, False, False)  # type: ignore[arg-type]
    assert ended.value.code == 1
    told = "NIXL does not start with UCX_TLS=tcp: NIXL_ERR_BACKEND"
    assert [(kind, text.startswith(told)) for kind, text in line.sent] == (
        [] if gone else [("UndeterminedError", True)]
    )
