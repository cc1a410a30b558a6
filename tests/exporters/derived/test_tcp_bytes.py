"""Bytes over TCP where RDMA packets pass the IP stack too."""

from kvdiag_exporters.catalog import Sample
from kvdiag_exporters.collectors import netdev, nic
from kvdiag_exporters.derived.tcp_bytes import LARGEST_PACKET, RECEIVED, TcpBytesDerivation

BY = {one.name: one for one in (*nic.METRICS, *netdev.METRICS)}
RDMA_PACKETS = BY["kvdiag_rdma_port_receive_packets_total"]
RDMA_BYTES = BY["kvdiag_rdma_port_receive_bytes_total"]


def host(ip: float, rdma: float) -> list[Sample]:
    return [
        nic.UP.sample(1.0, "h", "rxe0", "1"),
        RDMA_PACKETS.sample(rdma, "h", "rxe0", "1"),
        netdev.IP_RECEIVED.sample(ip, "h", ""),
        netdev.IP_RECEIVED.sample(1e9, "elsewhere", "engine"),
    ]


def total(derivation: TcpBytesDerivation, samples: list[Sample]) -> float | None:
    found = [one.value for one in derivation.derive(samples, 0.0).samples if one.metric is RECEIVED]
    assert all(isinstance(one, float) for one in found)
    return found[0] if found else None  # type: ignore[return-value]


def test_what_rdma_packets_can_have_been_is_not_taken_for_tcp() -> None:
    derivation = TcpBytesDerivation("h")
    assert total(derivation, host(5000, 10)) == 0
    assert total(derivation, host(5000 + 4 * LARGEST_PACKET, 14)) == 0  # all of it RDMA
    assert total(derivation, host(7000 + 4 * LARGEST_PACKET, 15)) == 0  # a small one
    assert total(derivation, host(107000 + 4 * LARGEST_PACKET, 16)) == 100000 - LARGEST_PACKET
    assert total(derivation, host(107000 + 4 * LARGEST_PACKET, 16)) == 100000 - LARGEST_PACKET  # nothing came
    assert total(derivation, host(100, 0)) == 100000 - LARGEST_PACKET  # counters begin anew


def test_a_card_that_counts_bytes_keeps_them_from_the_ip_stack() -> None:
    samples = [*host(5000, 10), RDMA_BYTES.sample(1.0, "h", "mlx5_0", "1")]
    assert total(TcpBytesDerivation("h"), samples) is None
    assert total(TcpBytesDerivation("h"), [one for one in host(1, 1) if one.metric is not RDMA_PACKETS]) is None
