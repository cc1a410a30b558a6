"""Bytes over TCP where RDMA packets pass the IP stack too."""

from kvdiag_exporters.catalog import Metric, Sample
from kvdiag_exporters.collectors import netdev, nic
from kvdiag_exporters.derived.tcp_bytes import RECEIVED, TcpBytesDerivation

BY = {one.name: one for one in (*nic.METRICS, *netdev.METRICS)}
RDMA_PACKETS = BY["kvdiag_rdma_port_receive_packets_total"]
RDMA_BYTES = BY["kvdiag_rdma_port_receive_bytes_total"]
PACKETS = BY["kvdiag_netdev_receive_packets_total"]


def host(ip: float, packets: float, rdma: float) -> list[Sample]:
    return [
        nic.UP.sample(1.0, "h", "rxe0", "1"),
        RDMA_PACKETS.sample(rdma, "h", "rxe0", "1"),
        PACKETS.sample(packets, "h", "", "eth0"),
        PACKETS.sample(1e9, "h", "", "lo"),
        PACKETS.sample(1e9, "elsewhere", "engine", "eth0"),
        netdev.IP_RECEIVED.sample(ip, "h", ""),
    ]


def total(derivation: TcpBytesDerivation, samples: list[Sample]) -> float | None:
    found = [one.value for one in derivation.derive(samples, 0.0).samples if one.metric is RECEIVED]
    assert all(isinstance(one, float) for one in found)
    return found[0] if found else None  # type: ignore[return-value]


def test_bytes_go_by_the_share_of_packets_that_were_not_rdma() -> None:
    derivation = TcpBytesDerivation("h")
    assert total(derivation, host(5000, 10, 10)) == 0
    assert total(derivation, host(9000, 14, 14)) == 0  # all of it RDMA
    assert total(derivation, host(13000, 18, 15)) == 3000
    assert total(derivation, host(13000, 18, 15)) == 3000  # nothing came
    assert total(derivation, host(100, 2, 0)) == 3000  # counters begin anew


def test_a_card_that_counts_bytes_keeps_them_from_the_ip_stack() -> None:
    samples = [*host(5000, 10, 10), RDMA_BYTES.sample(1.0, "h", "mlx5_0", "1")]
    assert total(TcpBytesDerivation("h"), samples) is None
    assert total(TcpBytesDerivation("h"), [one for one in host(1, 1, 1) if one.metric is not RDMA_PACKETS]) is None


def test_samples_of_any_other_labels_are_none_of_its_business() -> None:
    without = Metric(name="kvdiag_records_open", kind="gauge", help="x").sample(1.0)
    assert total(TcpBytesDerivation("h"), [without, *host(5000, 10, 10)]) == 0
