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


def totals(*seen: tuple[float, float]) -> list[float | None]:
    """Return the total after each collection, given what the IP stack received by then and how many RDMA packets."""
    derivation = TcpBytesDerivation("h")
    return [total(derivation, host(ip, rdma)) for ip, rdma in seen]


def test_what_rdma_packets_can_have_been_is_not_taken_for_tcp() -> None:
    full, small = LARGEST_PACKET, 2000.0
    assert totals((5000, 10), (5000 + 4 * full, 14), (5000 + 4 * full + small, 15), (5000, 15)) == [0, 0, 0, 0]


def test_what_is_too_much_for_rdma_packets_came_over_tcp() -> None:
    # One collection late, when it is known that the next one does not have as much too little.
    assert totals((0, 0), (1e5, 0), (2e5, 0), (2e5, 0), (2e5, 0)) == [0, 0, 1e5, 2e5, 2e5]
    assert totals((0, 0), (1e5, 1), (2e5, 2), (3e5, 3)) == [0, 0, 1e5 - LARGEST_PACKET, 2 * (1e5 - LARGEST_PACKET)]
    assert totals((9e9, 0), (10, 0), (1e5 + 10, 0), (1e5 + 10, 0)) == [0, 0, 0, 1e5]  # counters begin anew


def test_what_lay_between_reading_packets_and_bytes_is_not_taken_for_tcp() -> None:
    between = 10.0
    late = [(at * 100 * LARGEST_PACKET, at * 100 - (between if at % 3 == 1 else 0)) for at in range(20)]
    assert totals(*late)[-1] == 0
    assert totals(*[(ip, rdma + 2 * between) for ip, rdma in late])[-1] == 0


def test_a_card_that_counts_bytes_keeps_them_from_the_ip_stack() -> None:
    samples = [*host(5000, 10), RDMA_BYTES.sample(1.0, "h", "mlx5_0", "1")]
    assert total(TcpBytesDerivation("h"), samples) is None
    assert total(TcpBytesDerivation("h"), [one for one in host(1, 1) if one.metric is not RDMA_PACKETS]) is None
