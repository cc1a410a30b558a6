"""What came over TCP on a host with soft-RoCE, whose RDMA packets pass the kernel's IP stack as well."""

from collections import defaultdict
from collections.abc import Sequence

from kvdiag_exporters.catalog import Buckets, Metric, Recorded, Sample
from kvdiag_exporters.collectors import netdev, nic
from kvdiag_exporters.collectors.base import Setup
from kvdiag_exporters.derived.base import Derived

RECEIVED = Metric(
    name="kvdiag_ip_receive_without_rdma_bytes_total",
    kind="counter",
    unit="bytes",
    labels=("node",),
    help="Bytes that the host's IP stack received less the share of soft-RoCE packets, where there are such.",
    recorded=(Recorded(name="host.tcp_rx_bytes", unit="B"),),
)

METRICS = (RECEIVED,)

_RDMA_PACKETS = "kvdiag_rdma_port_receive_packets_total"
_RDMA_BYTES = "kvdiag_rdma_port_receive_bytes_total"
_ALL_PACKETS = "kvdiag_netdev_receive_packets_total"


class TcpBytesDerivation:
    """A port that counts packets and no bytes is soft-RoCE: a card counts both, and the IP stack sees none of them."""

    def __init__(self, host: str) -> None:
        self._host = host
        self._before: dict[str, float] = {}
        self._total = 0.0

    def derive(self, samples: Sequence[Sample], monotonic_s: float) -> Derived:  # noqa: ARG002
        """Return the bytes so far; each collection adds its share of packets that were not RDMA."""
        now = self._read(samples)
        if _RDMA_BYTES in now or not {_RDMA_PACKETS, _ALL_PACKETS, netdev.IP_RECEIVED.name, nic.UP.name} <= now.keys():
            return Derived()
        grown = {name: max(0.0, value - self._before[name]) for name, value in now.items() if name in self._before}
        self._before = now
        if grown.get(_ALL_PACKETS):
            rdma = min(1.0, grown[_RDMA_PACKETS] / grown[_ALL_PACKETS])
            self._total += grown[netdev.IP_RECEIVED.name] * (1 - rdma)
        return Derived(samples=[RECEIVED.sample(self._total, self._host)])

    def _read(self, samples: Sequence[Sample]) -> dict[str, float]:
        found: dict[str, float] = defaultdict(float)
        ports, host = (_RDMA_PACKETS, _RDMA_BYTES, nic.UP.name), (_ALL_PACKETS, netdev.IP_RECEIVED.name)
        for metric, labels, value in samples:
            if metric.name not in (*ports, *host) or labels[0] != self._host or isinstance(value, Buckets):
                continue
            if metric.name in ports or (labels[1] == "" and labels[2:] != ("lo",)):
                found[metric.name] += value
        return dict(found)


def create(setup: Setup) -> TcpBytesDerivation:
    return TcpBytesDerivation(setup.node)
