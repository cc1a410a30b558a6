"""RDMA netlink decoded from the bytes of a real kernel; tests/lab asks a live one."""

import json
from pathlib import Path
from typing import Any

import pytest

from kvdiag.errors import UndeterminedError
from kvdiag.model.missing import Missing
from kvdiag.sources import rdma_netlink
from kvdiag.sources._nldev import Attribute, KernelChannel, attributes, split_messages
from kvdiag.sources.base import Context
from tests.lab.rdma_program import check_against_rdma
from tests.netlink import CAPTURE, Replay


@pytest.fixture(scope="module")
def capture() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(CAPTURE.read_text())
    return found


def test_recorded_bytes_give_what_the_rdma_program_said(capture: dict[str, Any], tmp_path: Path) -> None:
    for thread, (process, name) in capture["threads"].items():
        (tmp_path / thread).mkdir(exist_ok=True)
        (tmp_path / thread / "status").write_text(f"Name:\t{name}\nTgid:\t{process}\nPid:\t{thread}\n")
        (tmp_path / thread / "comm").write_text(f"{name}\n")
    channel = Replay(capture["asked"])
    found = rdma_netlink.read_resources(channel=channel, proc=tmp_path)
    read = {
        "summaries": [{"device": one.device, **one.counts} for one in found.summaries],
        "qp": [[one.device, one.lqpn, one.type, one.state, str(one.pid)] for one in found.queue_pairs],
        "mr": [[one.device, one.mrn, one.length, str(one.pid)] for one in found.memory_regions],
        "others": [[one.device, one.kind, str(one.pid), one.count] for one in found.others],
    }
    check_against_rdma(read, capture["rdma"], capture["threads"])
    (holder,) = {one.pid for one in found.memory_regions}
    assert isinstance(holder, int)
    assert {one.owner for one in found.memory_regions} == {"python3"}
    assert {(one.pid == holder, one.owner) for one in found.queue_pairs if one.type != "GSI"} == {(True, "python3")}
    (one, *_) = (one for one in found.queue_pairs if one.type == "GSI")
    assert (one.pid, one.owner) == (Missing("owned by the kernel"), "ib_core")


def test_one_device_alone(capture: dict[str, Any]) -> None:
    channel = Replay(capture["asked"])
    found = rdma_netlink.read_resources("rxe1", channel=channel)
    assert {one.device for one in found.summaries} == {one.device for one in found.queue_pairs} == {"rxe1"}
    assert found.memory_regions == ()
    assert rdma_netlink.read_queue_pairs("nothing", channel=channel) == ()


def test_a_process_that_cannot_be_seen_is_missing(capture: dict[str, Any], tmp_path: Path) -> None:
    found = rdma_netlink.read_memory_regions(channel=Replay(capture["asked"]), proc=tmp_path)
    assert all(isinstance(one.pid, Missing) and "not visible" in one.pid.missing for one in found)


@pytest.mark.parametrize("data", [b"\x08\0\0\0" + bytes(12), b"\xff\0\0\0" + bytes(12)])
def test_impossible_message_lengths_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="netlink message"):
        list(split_messages(data))


@pytest.mark.parametrize("data", [b"\x02\0\x01\0", b"\x09\0\x01\0aaaa"])
def test_impossible_attribute_lengths_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="netlink attribute"):
        list(attributes(data))


def test_a_copied_tree_and_a_kernel_without_rdma_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(rdma_netlink.SOURCE.read(Context(live=False)), Missing)

    def refuse(*_: object) -> None:
        raise OSError(93, "Protocol not supported")

    monkeypatch.setattr("socket.socket", refuse)
    with pytest.raises(UndeterminedError, match="modprobe ib_core"), KernelChannel():
        pass
    found = rdma_netlink.SOURCE.read(Context())
    assert isinstance(found, Missing)
    assert "no RDMA netlink" in found.missing


def test_attribute_numbers_are_those_of_the_kernels_header() -> None:
    header = Path("/usr/include/rdma/rdma_netlink.h")
    if not header.exists():
        pytest.skip("linux-libc-dev is not installed")
    body = header.read_text().split("enum rdma_nldev_attr {")[1].split("};")[0]
    names = [line.split(",")[0].split("=")[0].strip() for line in body.splitlines() if "RDMA_NLDEV_" in line]
    names = [name for name in names if name.startswith("RDMA_NLDEV_") and name != "RDMA_NLDEV_ATTR_PAD"]
    numbers = {name: position for position, name in enumerate(names)}
    prefixes = {one: "RDMA_NLDEV_" if one.name.startswith("SYS_ATTR") else "RDMA_NLDEV_ATTR_" for one in Attribute}
    assert {one.name: numbers[prefix + one.name] for one, prefix in prefixes.items()} == {
        one.name: one.value for one in Attribute
    }
