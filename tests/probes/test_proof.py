import os

import pytest

from kvdiag.model.missing import Missing
from kvdiag.model.probe import TransportProof
from kvdiag.model.rdma import PortCounters
from kvdiag_probes.datapath import Operation
from kvdiag_probes.proof import Objects, joined, judge_rdma, judge_tcp, named, read_counters

RTS = Objects(counts={"qp": 1, "mr": 1}, states={17: "RTS"})
MTU = 4096


def counters(hw: dict[str, int] | None = None, pma: dict[str, int] | None = None) -> PortCounters:
    return PortCounters(device="rxe0", port=1, counters=pma or {}, hw_counters=hw or {}, unreadable={})


@pytest.mark.parametrize(
    ("operation", "packets", "status"),
    [
        (Operation.WRITE, {"sent_pkts": 100, "rcvd_pkts": 5}, "proved"),
        (Operation.WRITE, {"sent_pkts": 99, "rcvd_pkts": 500}, "contradicted"),
        (Operation.READ, {"sent_pkts": 5, "rcvd_pkts": 100}, "proved"),
        (Operation.READ, {"sent_pkts": 500, "rcvd_pkts": 99}, "contradicted"),
    ],
)
def test_packets_times_mtu_bound_the_payload_in_its_direction(
    operation: Operation, packets: dict[str, int], status: str
) -> None:
    before = counters({"sent_pkts": 1000, "rcvd_pkts": 1000})
    after = counters({name: 1000 + count for name, count in packets.items()})
    assert judge_rdma(operation, 100 * MTU, MTU, 17, before, after, RTS, 500).status == status


def test_byte_counters_are_four_byte_words_and_come_first() -> None:
    before, after = (
        counters({"sent_pkts": 0}, {"port_xmit_data": 10}),
        counters({"sent_pkts": 0}, {"port_xmit_data": 260}),
    )
    proof = judge_rdma(Operation.WRITE, 1000, MTU, 17, before, after, RTS, 5)
    assert proof.status == "proved"
    assert judge_rdma(Operation.WRITE, 1001, MTU, 17, before, after, RTS, 5).status == "contradicted"


@pytest.mark.parametrize("objects", [Objects(counts={}, states={}), Objects(counts={}, states={17: "ERR"})])
def test_a_queue_pair_that_is_not_there_or_not_ready_contradicts(objects: Objects) -> None:
    before, after = counters({"sent_pkts": 0}), counters({"sent_pkts": 10})
    assert judge_rdma(Operation.WRITE, MTU, MTU, 17, before, after, objects, 5).status == "contradicted"


def test_as_many_bytes_over_tcp_contradict() -> None:
    before, after = counters({"sent_pkts": 0}), counters({"sent_pkts": 1000})
    payload = 100 * MTU
    assert judge_rdma(Operation.WRITE, payload, MTU, 17, before, after, RTS, payload).status == "contradicted"
    assert judge_rdma(Operation.WRITE, payload, MTU, 17, before, after, RTS, payload - 1).status == "proved"


def test_less_than_the_control_channels_own_traffic_is_proved_by_the_port_alone() -> None:
    before, after = counters({"sent_pkts": 0}), counters({"sent_pkts": 10})
    proof = judge_rdma(Operation.WRITE, 640, MTU, 17, before, after, RTS, 2700)
    assert proof.status == "proved"
    assert proof.missing == ("640 bytes are less than requests to the agent take: move more to tell them apart",)
    assert judge_rdma(Operation.WRITE, 640, MTU, 17, before, before, RTS, 2700).status == "contradicted"


def test_without_counters_nothing_is_proved_and_the_reason_is_kept() -> None:
    proof = judge_rdma(
        Operation.WRITE, MTU, MTU, 17, Missing("no sysfs"), Missing("no sysfs"), Missing("no netlink"), 5
    )
    assert proof.status == "not_observable"
    assert [reason.partition(": ")[2] for reason in proof.missing] == ["no sysfs", "no netlink"]
    assert judge_rdma(Operation.WRITE, MTU, MTU, 17, counters(), counters(), RTS, 5).status == "not_observable"


def test_tcp_is_proved_by_its_own_count() -> None:
    assert judge_tcp(100, 100).status == "proved"
    assert judge_tcp(100, 99).status == "contradicted"


def test_counts_of_two_operations_say_which_is_which() -> None:
    (item,) = named(Operation.READ, judge_tcp(100, 100)).evidence
    assert item.name == "READ: TCP bytes on the data connection"


def test_a_port_that_is_not_here_is_missing() -> None:
    assert isinstance(read_counters(f"none{os.getpid()}", 1), Missing)


def test_rails_are_proved_only_together() -> None:
    good = TransportProof(status="proved", payload_bytes=10, evidence=())
    unseen = TransportProof(status="not_observable", payload_bytes=10, evidence=(), missing=("no counters",))
    bad = TransportProof(status="contradicted", payload_bytes=10, evidence=())
    assert joined([good, good]).status == "proved"
    assert joined([good, good]).payload_bytes == 20
    assert (joined([good, unseen]).status, joined([good, unseen]).missing) == ("not_observable", ("no counters",))
    assert joined([unseen, bad, good]).status == "contradicted"
