"""RDMA netlink of a live kernel, against the `rdma` program in the same machine."""

import json
import sys

import pytest

from tests.lab.rdma_program import check_against_rdma
from tests.lab.topology import Wire


@pytest.mark.lab
def test_a_real_kernel_agrees_with_the_rdma_program(lab_node: Wire) -> None:
    machine = lab_node.a.machine
    holder = machine.spawn(["/usr/bin/python3", "tests/lab/netlink_holder.py", "rxe0", "3"], stdin=True)
    holder.wait_for("^ready", 60)
    program = [sys.executable, "-m", "tests.lab.netlink_capture"]
    held = json.loads(machine.run(program, 60, check=True).stdout)
    holder.write(b"\n")
    assert holder.wait(20).rc == 0
    after = json.loads(machine.run(program, 60, check=True).stdout)
    check_against_rdma(held["read"], held["rdma"], held["threads"])
    (pid,) = {pid for *_, pid in held["read"]["mr"]}
    assert [pid for _, _, kind, _, pid in held["read"]["qp"] if kind in ("RC", "UD")] == [pid] * 4
    assert [state for _, _, kind, state, _ in held["read"]["qp"] if kind == "RC"] == ["ERR", "RESET", "RESET"]
    assert sorted(length for *_, length, _ in held["read"]["mr"]) == [4096, 8192, 65536]
    # Nothing is left behind, and a reader without any privilege sees the same.
    check_against_rdma(after["read"], after["rdma"], after["threads"])
    assert after["read"]["mr"] == []
    nobody = ["setpriv", "--reuid=65534", "--clear-groups", *program]
    assert json.loads(machine.run(nobody, 60, check=True).stdout)["read"] == after["read"]
