"""What came over TCP on a host with soft-RoCE, whose RDMA packets pass the kernel's IP stack as well."""

from collections import defaultdict
from collections.abc import Sequence

from kvdiag_exporters.catalog import Buckets, Metric, Recorded, Sample
from kvdiag_exporters.collectors import netdev, nic
from kvdiag_exporters.collectors.base import Setup
from kvdiag_exporters.derived.base import Derived
from kvdiag_exporters.going_on import Gone

RECEIVED = Metric(
    name="kvdiag_ip_receive_without_rdma_bytes_total",
    kind="counter",
    unit="bytes",
    labels=("node",),
    help="Bytes that the host's IP stack received and that soft-RoCE packets cannot have been, at 4,200 bytes each.",
    recorded=(Recorded(name="host.tcp_rx_bytes", unit="B"),),
)

METRICS = (RECEIVED,)

_RDMA_PACKETS = "kvdiag_rdma_port_receive_packets_total"
_RDMA_BYTES = "kvdiag_rdma_port_receive_bytes_total"
_WANTED = frozenset((_RDMA_PACKETS, _RDMA_BYTES, nic.UP.name, netdev.IP_RECEIVED.name))
LARGEST_PACKET = 4200.0
"""Bytes: the largest RDMA MTU, 4096, and its headers. Packets of a control connection are small and many: by shares of
packets their bytes would be overstated, and TCP blamed for what it did not carry."""


class TcpBytesDerivation:
    """A port that counts packets and no bytes is soft-RoCE: a card counts both, and the IP stack sees none of them."""

    def __init__(self, host: str) -> None:
        self._host = host
        self._before: dict[str, float] = {}
        self._total = 0.0
        self._surplus = (0.0, 0.0)

    def go_on(self, before: "TcpBytesDerivation", gone: Gone) -> None:
        """Begin with what was counted before a reload, where it is the same host."""
        if before._host not in gone.nodes and before._host == self._host:
            self._before, self._total, self._surplus = before._before, before._total, before._surplus

    def derive(self, samples: Sequence[Sample], monotonic_s: float) -> Derived:  # noqa: ARG002
        """Return the bytes so far; each collection adds what was too much for the RDMA packets in the one before it.

        Packets and bytes are not read at the same instant: what one collection has too much of and its neighbour too
        little was only between the two readings.
        """
        now = self._read(samples)
        if _RDMA_BYTES in now or not {_RDMA_PACKETS, netdev.IP_RECEIVED.name, nic.UP.name} <= now.keys():
            return Derived()
        grown = {name: max(0.0, value - self._before[name]) for name, value in now.items() if name in self._before}
        self._before = now
        if grown:
            earlier, latest = self._surplus
            following = grown[netdev.IP_RECEIVED.name] - LARGEST_PACKET * grown[_RDMA_PACKETS]
            self._total += max(0.0, latest + min(0.0, earlier, following))
            self._surplus = latest, following
        return Derived(samples=[RECEIVED.sample(self._total, self._host)])

    def _read(self, samples: Sequence[Sample]) -> dict[str, float]:
        found: dict[str, float] = defaultdict(float)
        ports = (_RDMA_PACKETS, _RDMA_BYTES, nic.UP.name)
        for metric, labels, value in samples:
            if metric.name not in _WANTED:
                continue
            host = metric is netdev.IP_RECEIVED and labels[1] == ""
            if labels[:1] == (self._host,) and (metric.name in ports or host) and not isinstance(value, Buckets):
                found[metric.name] += value
        return dict(found)


def create(setup: Setup) -> TcpBytesDerivation:
    return TcpBytesDerivation(setup.node)
