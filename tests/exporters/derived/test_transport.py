"""What carried the bytes, and where that cannot be told."""

from collections.abc import Sequence

import pytest

from kvdiag_exporters.catalog import Buckets, Sample
from kvdiag_exporters.collectors import netdev, nic, nixl
from kvdiag_exporters.derived.base import Derived
from kvdiag_exporters.derived.carrier import LEAST_BYTES, Moved, judge, ranks_behind
from kvdiag_exporters.derived.transport import BYTES, TRANSPORT, TransportDerivation
from kvdiag_exporters.engines.metrics import BY_NAME

GB = 1e9
BY = {one.name: one for one in (*nic.METRICS, *netdev.METRICS, *nixl.METRICS)}
READ = BY["kvdiag_nixl_receive_bytes_total"]
SIZES = BY_NAME["kvdiag_engine_transfer_size_bytes"]


@pytest.mark.parametrize(("rdma", "ip", "loopback", "present", "expected"), [
    (1.02, 0.01, 0.0, True, "rdma"),
    (0.90, 0.01, 0.0, True, "rdma"),
    (0.00, 1.05, 0.0, True, "tcp"),
    (None, 1.05, 0.0, False, "tcp"),
    (0.60, 0.45, 0.0, True, "mixed"),
    (0.01, 0.02, 0.0, True, "local"),
    (None, 0.02, 0.0, False, "local"),
    (0.00, 0.02, 1.0, True, "tcp_loopback"),
    (1.00, 1.00, 0.0, True, "unknown"),   # either could have carried them
    (0.50, 0.01, 0.0, True, "unknown"),   # the other half is nowhere
    (None, 0.50, 0.0, True, "unknown"),   # ports that count no bytes
    (1.00, None, None, True, "unknown"),
])  # fmt: skip
def test_verdicts(rdma: float | None, ip: float | None, loopback: float | None, present: bool, expected: str) -> None:
    def amount(share: float | None) -> float | None:
        return None if share is None else share * GB

    it = Moved(claimed=GB, rdma=amount(rdma), ip=amount(ip), loopback=amount(loopback), rdma_present=present)
    transport, why = judge(it)
    assert transport == expected
    assert why


def test_too_few_bytes_tell_nothing() -> None:
    it = Moved(claimed=LEAST_BYTES - 1, rdma=GB, ip=0.0, loopback=0.0, rdma_present=True)
    assert judge(it)[0] == "unknown"


@pytest.mark.parametrize(
    ("times", "ranks"), [(1.0, None), (1.5, None), (2.02, 2), (7.9, 8), (8.5, None), (300.0, None)]
)
def test_a_whole_multiple_points_at_ranks(times: float, ranks: int | None) -> None:
    it = Moved(claimed=GB, rdma=times * GB, ip=0.0, loopback=0.0, rdma_present=True)
    assert ranks_behind(it) == ranks


def host(
    claimed: float, rdma: float | None = None, ip: float = 0.0, lo: float = 0.0, packets: float | None = None
) -> list[Sample]:
    """Return one collection of a decode node that pulls, its totals in GB."""
    port, link = ("host", "mlx5_0", "1"), ("host", "")
    found = [
        READ.sample(claimed * GB, "decode-0", "e", "decode", "0"),
        nic.UP.sample(1.0, *port),
        netdev.IP_RECEIVED.sample((ip + lo) * GB, *link),
        BY["kvdiag_netdev_receive_bytes_total"].sample(lo * GB, *link, "lo"),
        BY["kvdiag_netdev_receive_bytes_total"].sample((ip if packets is None else ip + 0.01) * GB, *link, "eth0"),
    ]
    if rdma is not None:
        found.append(BY["kvdiag_rdma_port_receive_bytes_total"].sample(rdma * GB, *port))
    if packets is not None:
        found.append(BY["kvdiag_rdma_port_receive_packets_total"].sample(packets, *port))
        found.append(BY["kvdiag_netdev_receive_packets_total"].sample(packets + 10, *link, "eth0"))
    return found


def after(*collections: Sequence[Sample], step_s: float = 10.0) -> Derived:
    transport = TransportDerivation("host")
    for number, samples in enumerate(collections):
        found = transport.derive(list(samples), number * step_s)
    return found


def verdict(found: Derived) -> str | None:
    chosen = [one.labels[2] for one in found.samples if one.metric is TRANSPORT and one.value == 1]
    assert len(chosen) <= 1
    return chosen[0] if chosen else None


def test_rdma() -> None:
    found = after(host(0, 0), host(5, 5.1, 0.01))
    assert verdict(found) == "rdma"
    assert found.findings == []
    amounts = {one.labels[2]: one.value for one in found.samples if one.metric is BYTES}
    assert amounts == {
        "claimed": 5 * GB,
        "rdma": pytest.approx(5.1 * GB),
        "ip": pytest.approx(0.01 * GB),
        "loopback": 0,
    }


def test_a_fallback_to_tcp_is_a_finding_where_ports_are_up() -> None:
    found = after(host(0, 0), host(5, 0.001, 5.3))
    assert verdict(found) == "tcp"
    (finding,) = found.findings
    assert (finding.code, finding.host, finding.subject) == ("EXP005", "decode-0", "decode-0 receive")
    assert "tcp 1.06" in finding.summary


def test_both_at_once_is_mixed_and_a_finding() -> None:
    found = after(host(0, 0), host(5, 3, 2.1))
    assert (verdict(found), [one.code for one in found.findings]) == ("mixed", ["EXP005"])


def test_shared_memory_and_loopback() -> None:
    assert verdict(after(host(0, 0), host(5, 0, 0.01))) == "local"
    assert verdict(after(host(0, 0), host(5, 0, 0.01, lo=5.2))) == "tcp_loopback"


def test_soft_roce_is_told_by_its_packets() -> None:
    """It counts no bytes, and what it receives passes the IP stack as UDP."""
    assert verdict(after(host(0, packets=0), host(5, ip=5.2, packets=1_000_000))) == "rdma"
    idle = host(5, ip=5.2, packets=0)
    idle = [one for one in idle if one.metric.name != "kvdiag_netdev_receive_packets_total"]
    idle.append(BY["kvdiag_netdev_receive_packets_total"].sample(1e6, "host", "", "eth0"))
    assert verdict(after(host(0, packets=0), idle)) == "tcp"


def test_the_window_is_long_enough_and_begins_anew_after_a_restart() -> None:
    assert verdict(after(host(0, 0), host(5, 5), step_s=1.0)) is None
    assert verdict(after(host(9, 0), host(1, 5))) is None
    assert verdict(after(host(9, 0), host(1, 0), host(3, 2))) == "rdma"


def test_a_collector_that_did_not_answer_is_no_restart() -> None:
    without_ports = [one for one in host(6, 6) if not one.metric.name.startswith("kvdiag_rdma_port_")]
    without_claims = [one for one in host(6, 6) if one.metric is not READ]
    assert verdict(after(host(0, 0), host(5, 5), without_ports)) is None
    assert verdict(after(host(0, 0), host(5, 5), without_ports, host(7, 7))) == "rdma"
    assert verdict(after(host(0, 0), host(5, 5), without_claims, host(7, 7))) == "rdma"
    assert verdict(after(host(5, 0), without_claims, host(1, 2), host(3, 4))) == "rdma"  # and the engine began anew
    # Ports that are gone for good are none at last.
    later = [[one for one in host(n, n) if not one.metric.name.startswith("kvdiag_rdma_port_")] for n in range(1, 9)]
    assert verdict(after(host(0, 0), *later)) == "local"


def test_what_lies_before_the_window_counts_no_more() -> None:
    pulled = [host(float(n), 0.0, float(n)) for n in range(8)]  # 70 s over TCP, then RDMA
    repaired = [host(7.0 + n, float(n), 7.0) for n in range(1, 9)]
    assert verdict(after(*pulled)) == "tcp"
    assert verdict(after(*pulled, *repaired[:3])) == "mixed"
    assert verdict(after(*pulled, *repaired)) == "rdma"


def test_scrapes_further_apart_than_the_window_are_compared_with_each_other() -> None:
    assert verdict(after(host(0, 0), host(5, 5), host(9, 9), step_s=300.0)) == "rdma"


def test_the_best_source_of_an_engine_counts_once() -> None:
    def told(amount: float) -> list[Sample]:
        size = Buckets((1.0,), (0, 1), amount * GB)
        return [
            *host(amount, amount),
            SIZES.sample(size, "decode-0", "e", "decode", "vllm", "0", "nixl", "handle", "measured"),
        ]

    found = after(told(0), told(5))
    (claimed,) = [one.value for one in found.samples if one.metric is BYTES and one.labels[2] == "claimed"]
    assert claimed == 5 * GB


def test_an_engine_that_only_serves_histograms_claims_by_its_role() -> None:
    def told(amount: float) -> list[Sample]:
        size = Buckets((1.0,), (0, 1), amount * GB)
        port = ("host", "mlx5_0", "1")
        return [
            SIZES.sample(size, "host", "e", "prefill", "vllm", "0", "nixl", "handle", "measured"),
            nic.UP.sample(1.0, *port),
            BY["kvdiag_rdma_port_transmit_bytes_total"].sample(amount * GB, *port),
            netdev.IP_SENT.sample(0.0, "host", ""),
        ]

    found = after(told(0), told(5))
    assert verdict(found) == "rdma"
    assert {one.labels[1] for one in found.samples} == {"transmit"}


def test_one_rank_that_reports_for_many_is_a_finding() -> None:
    found = after(host(0, 0), host(1, 8.05))
    assert (verdict(found), [one.code for one in found.findings]) == ("rdma", ["EXP006"])
    assert "8 times" in found.findings[0].summary


def test_without_claims_nothing_is_said() -> None:
    found = after(host(0, 0)[1:], host(5, 5)[1:])
    assert (found.samples, found.findings) == ([], [])
