"""The proof of an RDMA path's transfers, from counters that a test makes up."""

from types import SimpleNamespace

import pytest

from kvdiag.model.missing import Missing
from kvdiag.model.rdma import PortCounters
from kvdiag_probes import proof
from kvdiag_probes.datapath import Operation
from kvdiag_probes.kv.rdma_path import RdmaKvPath

MTU = 4096


def counters(sent: int, received: int) -> PortCounters:
    """Return what rdma_rxe counts: packets, and no bytes."""
    hw_counters = {"sent_pkts": sent, "rcvd_pkts": received}
    return PortCounters(device="rxe0", port=1, counters={}, hw_counters=hw_counters, unreadable={})


@pytest.mark.parametrize(
    ("after", "status"),
    [
        (counters(116, 116), "proved"),
        (counters(115, 116), "contradicted"),
        (counters(116, 115), "contradicted"),
        (Missing("sysfs cannot be seen"), "not_observable"),
    ],
)
def test_packets_must_account_for_both_directions(
    monkeypatch: pytest.MonkeyPatch, after: PortCounters | Missing, status: str
) -> None:
    readings = iter([counters(100, 100), after])
    monkeypatch.setattr(proof, "read_counters", lambda *_: next(readings))
    objects = proof.Objects(counts={"qp": 1}, states={7: "RTS"})
    monkeypatch.setattr(proof, "read_objects", lambda _: objects)
    client = SimpleNamespace(moved_bytes=(100, 200))
    endpoint = SimpleNamespace(
        choice=SimpleNamespace(device="rxe0", port=1), path_mtu=MTU, address=SimpleNamespace(qpn=7)
    )
    path = RdmaKvPath(endpoint, None, client, "s", "peer")  # type: ignore[arg-type]
    client.moved_bytes = (600, 700)
    found = path.prove({Operation.WRITE: 16 * MTU, Operation.READ: 15 * MTU + 1})
    assert (found.status, found.payload_bytes) == (status, 31 * MTU + 1)
    # The queue pair is of both directions, and named once; what was moved on the control connection is what came since.
    assert [item.value for item in found.evidence if item.name == "queue pair 7"] == ["RTS"]
    control = {item.name: item.value for item in found.evidence if item.source == "TCP_INFO"}
    name = "TCP bytes on the control connection"
    assert control == {f"WRITE: {name}": "1000", f"READ: {name}": "1000"}


class Elsewhere:
    """Memory that is not the host's: what `push` brings there is what `pull` brings back."""

    def __init__(self, view: bytearray) -> None:
        self._view, self.there = view, bytearray(len(view))

    def push(self, start: int, stop: int) -> None:
        self.there[start:stop] = self._view[start:stop]

    def pull(self, start: int, stop: int) -> None:
        self._view[start:stop] = self.there[start:stop]


def test_payloads_are_made_in_and_digested_from_the_memory_that_is_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proof, "read_counters", lambda *_: Missing("none"))
    host = bytearray(256)
    region = Elsewhere(host)
    choice = SimpleNamespace(device="rxe0", port=1)
    endpoint = SimpleNamespace(choice=choice, buffer=memoryview(host), region=region)
    path = RdmaKvPath(endpoint, None, SimpleNamespace(moved_bytes=(0, 0)), "s", "peer")  # type: ignore[arg-type]
    path.fill(7, 128, far=False)
    assert any(region.there[:128]) and not any(region.there[128:])
    expected = path.digest(128, far=False)
    region.there[5] ^= 1
    assert path.digest(128, far=False) != expected
