"""`kvdiag preflight --peer` between two machines: a sound pair passes, and each fault of a pair has its own finding."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.lab import probing
from tests.lab.topology import End, Wire

pytestmark = pytest.mark.lab


def preflight(near: End, far: str, *arguments: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "kvdiag", "preflight", "--format", "json", "--timeout", "60", "--peer", far]
    result = near.machine.run([*command, *arguments], timeout_s=200, environment=probing.ENVIRONMENT)
    assert result.stdout, result
    document: dict[str, Any] = json.loads(result.stdout)
    document["rc"] = result.rc
    return document


def grave(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the findings by code that are more than a note."""
    return {item["code"]: item for item in document["findings"] if item["severity"] != "info"}


def result_of(document: dict[str, Any], code: str) -> tuple[str, str]:
    (found,) = [item for item in document["checks"] if item["code"] == code]
    return found["status"], found["detail"]


@contextmanager
def agent(end: End, address: str, arguments: str = "", port: int = probing.PORT + 1) -> Iterator[str]:
    """Run an agent on an address of the end, and yield where."""
    where = f"{address}:{port}"
    command = f"exec {probing.KVDIAG} agent --listen {where} --idle 10 {arguments}"
    process = end.machine.spawn(command, environment=probing.ENVIRONMENT)
    process.wait_for("^kvdiag agent listens on", 60)
    try:
        yield where
    finally:
        process.kill()


@pytest.fixture(scope="module")
def far(lab_pair: Wire) -> Iterator[str]:
    """Return where an agent of b listens, for tests that leave its address in place."""
    with agent(lab_pair.b, lab_pair.b.address, port=probing.PORT) as where:
        yield where


@contextmanager
def changed(end: End, change: str, restore: str) -> Iterator[None]:
    """Run one command in the machine, and the other one afterwards."""
    try:
        end.machine.run(change, check=True)
        yield
    finally:
        end.machine.run(restore, check=True)
        end.await_port("ACTIVE")


def test_a_pair_in_order_moves_a_block_each_way(lab_pair: Wire, far: str) -> None:
    before = [probing.objects(end.machine) for end in lab_pair.ends]
    document = preflight(lab_pair.a, far)
    # The machines' clocks start up to a second apart.
    assert set(grave(document)) <= {"PAIR007"}
    status, detail = result_of(document, "PAIR008")
    assert status == "passed"
    assert "WRITE of 65536 bytes, path MTU 4096, between rxe0/1" in detail and "READ of 65536 bytes" in detail
    for code in ("PAIR001", "PAIR002", "MTU001", "GID004"):
        assert result_of(document, code)[0] == "passed", document["checks"]
    for end, wanted in zip(lab_pair.ends, before, strict=True):
        probing.await_objects(end.machine, wanted)


def test_no_transfer_moves_no_block(lab_pair: Wire, far: str) -> None:
    before = lab_pair.a.counters()["sent_pkts"]
    document = preflight(lab_pair.a, far, "--no-transfer")
    assert lab_pair.a.counters()["sent_pkts"] == before
    assert result_of(document, "PAIR008")[0] == "not_observable"


def test_a_smaller_mtu_at_the_peer_is_mtu001_and_the_block_still_moves(lab_pair: Wire, far: str) -> None:
    small, large = (f"ip link set eth0 mtu {mtu}" for mtu in (1500, 4200))
    with changed(lab_pair.b, small, large):
        document = preflight(lab_pair.a, far)
    assert document["rc"] == 1
    assert set(grave(document)) - {"PAIR007"} == {"MTU001"}
    assert "4096 on rxe0/1 and 1024 on b rxe0/1" in grave(document)["MTU001"]["summary"]
    assert "path MTU 1024" in result_of(document, "PAIR008")[1]


def test_dropped_roce_packets_are_told_from_a_dead_path(lab_pair: Wire, far: str) -> None:
    drop = (
        "modprobe -a dummy cls_u32 sch_ingress act_mirred && ip link add sink type dummy && ip link set sink up && "
        "tc qdisc add dev eth0 ingress && tc filter add dev eth0 parent ffff: protocol ip u32 "
        "match ip protocol 17 0xff match ip dport 4791 0xffff action mirred egress redirect dev sink"
    )
    with changed(lab_pair.b, drop, "tc qdisc del dev eth0 ingress; ip link del sink"):
        document = preflight(lab_pair.a, far)
    assert document["rc"] == 2
    assert set(grave(document)) - {"PAIR007"} == {"PAIR008"}
    assert "consistent with UDP port 4791 being dropped" in grave(document)["PAIR008"]["summary"]
    with lab_pair.a.netem("delay 1ms"):
        assert result_of(preflight(lab_pair.a, far), "PAIR008")[0] == "passed"


def test_link_local_gids_alone_are_pair002(lab_pair: Wire) -> None:
    # An address of the loopback interface answers on the wire, but is no GID of the RDMA device.
    away = (
        "ip addr del 10.0.0.2/24 dev eth0 && ip addr add 10.0.0.2/32 dev lo && "
        "ip route add 10.0.0.0/24 dev eth0 src 10.0.0.2"
    )
    back = "ip route del 10.0.0.0/24 dev eth0; ip addr del 10.0.0.2/32 dev lo; ip addr add 10.0.0.2/24 dev eth0"
    with changed(lab_pair.b, away, back), agent(lab_pair.b, lab_pair.b.address) as far:
        document = preflight(lab_pair.a, far)
    found = grave(document)
    assert found["PAIR002"]["summary"].startswith("b has link-local RoCE v2 GIDs only")
    assert set(found) - {"PAIR007"} <= {"PAIR002", "PAIR008"}
    if "PAIR008" in found:
        assert found["PAIR008"]["explained_by"] == "PAIR002"


def test_a_pair_with_ipv6_alone_passes_with_a_note(lab_pair: Wire) -> None:
    def change(number: int) -> tuple[str, str]:
        return (
            f"ip addr add fd00::{number}/64 dev eth0 nodad && ip addr del 10.0.0.{number}/24 dev eth0",
            f"ip addr add 10.0.0.{number}/24 dev eth0; ip addr del fd00::{number}/64 dev eth0",
        )

    with (
        changed(lab_pair.a, *change(1)),
        changed(lab_pair.b, *change(2)),
        agent(lab_pair.b, "[fd00::2]") as far,
    ):
        document = preflight(lab_pair.a, far)
    assert set(grave(document)) <= {"PAIR007"}
    assert [item["severity"] for item in document["findings"] if item["code"] == "GID004"] == ["info"]
    status, detail = result_of(document, "PAIR008")
    assert (status, detail.count("fd00::")) == ("passed", 4), detail


def test_separate_rails_are_noted_and_a_block_across_them_fails(lab_pair: Wire) -> None:
    def change(number: int) -> tuple[str, str]:
        return (
            "modprobe dummy && ip link add rail1 type dummy && ip link set rail1 mtu 4200 up && "
            f"ip addr add 10.1.0.{number}/24 dev rail1 && rdma link add rxe1 type rxe netdev rail1",
            "rdma link delete rxe1; ip link del rail1",
        )

    with (
        changed(lab_pair.a, *change(1)),
        changed(lab_pair.b, *change(2)),
        agent(lab_pair.b, lab_pair.b.address, "--device rxe1") as far,
    ):
        document = preflight(lab_pair.a, far, "--device", "rxe0")
    assert document["rc"] == 2
    # Either end may see it first: the kernel without a route, or this end without an answer to anything.
    summary = grave(document)["PAIR008"]["summary"]
    assert "the rails or fabrics are separate" in summary or "a wrong VLAN, subnet or rail" in summary
    assert "NET001" in {item["code"] for item in document["findings"]}, document["findings"]
