"""`kvdiag preflight` on machines with real RDMA devices: what it reads there, and a fault it must find."""

import json
import sys
from typing import Any

import pytest

from tests.lab import probing
from tests.lab.topology import End, Wire

pytestmark = pytest.mark.lab


def preflight(end: End, *arguments: str, code: int = 0, **environment: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "kvdiag", "preflight", "--format", "json", *arguments]
    result = end.machine.run(command, timeout_s=90, environment={**probing.ENVIRONMENT, **environment})
    assert result.rc == code, result
    document: dict[str, Any] = json.loads(result.stdout)
    return document


def status(document: dict[str, Any]) -> dict[str, str]:
    return {item["code"]: item["status"] for item in document["checks"]}


def test_a_machine_with_soft_roce_passes(lab_pair: Wire) -> None:
    document = preflight(lab_pair.a)
    assert document["findings"] == []
    found = status(document)
    for code in ("TRN002", "FAB002", "GID003", "CON001", "CON006"):
        assert found[code] == "passed", document["checks"]
    # Soft-RoCE has no way to GPU memory, which is no fault of it.
    assert found["GDR001"] == "not_applicable"


def test_a_pulled_cable_is_found_and_so_is_its_return(lab_pair: Wire) -> None:
    lab_pair.set_link(False)
    try:
        lab_pair.a.await_port("DOWN")
        document = preflight(lab_pair.a, code=2)
        assert [finding["code"] for finding in document["findings"]] == ["FAB002"]
    finally:
        lab_pair.set_link(True)
        lab_pair.a.await_port("ACTIVE")
    assert preflight(lab_pair.a)["findings"] == []


def test_an_index_of_an_empty_slot_is_found_with_the_right_one(lab_pair: Wire) -> None:
    document = preflight(lab_pair.a, code=2, UCX_IB_GID_INDEX="200")
    (finding,) = document["findings"]
    assert finding["code"] == "GID002"
    assert finding["action"] == f"export UCX_IB_GID_INDEX={lab_pair.a.gid_index()}"
    assert preflight(lab_pair.a, UCX_IB_GID_INDEX=str(lab_pair.a.gid_index()))["findings"] == []
