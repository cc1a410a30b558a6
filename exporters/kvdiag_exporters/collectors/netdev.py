"""Network interfaces, TCP and IP: of this host, and of each engine that lives in a network namespace of its own."""

import fnmatch
from collections.abc import Iterator

from kvdiag.model.missing import Missing
from kvdiag.model.netdev import NetDevice, NetNamespace
from kvdiag.sources.netdev import read_namespace
from kvdiag_exporters.catalog import Metric, Recorded, Sample
from kvdiag_exporters.collectors.base import Setup

_DEVICE = ("node", "engine", "device")
_NAMESPACE = ("node", "engine")
# Host ends of containers' interfaces: many, short-lived, and their traffic is counted again on the physical device.
_HOST_ENDS = ("veth*", "cali*", "lxc*", "docker*", "br-*", "virbr*", "ifb*", "flannel*", "cni*", "cilium*", "tap*")


def _counter(name: str, help_: str, unit: str = "", recorded: tuple[Recorded, ...] = ()) -> Metric:
    return Metric(name=name, kind="counter", unit=unit, labels=_DEVICE, help=help_, recorded=recorded)


UP = Metric(
    name="kvdiag_netdev_up",
    kind="gauge",
    labels=_DEVICE,
    help="1 where the interface's operational state is up, 0 where it is down.",
)
SPEED = Metric(
    name="kvdiag_netdev_speed_bytes_per_second",
    kind="gauge",
    labels=_DEVICE,
    help="Negotiated rate of the interface.",
    recorded=(Recorded(name="nic.link_gbps", unit="Gbit/s", scale=8e-9, fallback=1),),
)
RETRANSMITS = Metric(
    name="kvdiag_tcp_retransmitted_segments_total",
    kind="counter",
    labels=_NAMESPACE,
    help="TCP segments sent again (Tcp RetransSegs of the namespace).",
    recorded=(Recorded(name="nic.retransmits", unit="count", fallback=1),),
)
IP_RECEIVED = Metric(
    name="kvdiag_ip_receive_bytes_total",
    kind="counter",
    unit="bytes",
    labels=_NAMESPACE,
    help="Bytes that the kernel's IP stack received (IpExt InOctets): TCP and UDP, loopback too, RDMA of a NIC not.",
    # Without an RDMA port TCP is the transport, and nothing falls back to it.
    recorded=(Recorded(name="host.tcp_rx_bytes", unit="B", only_with="kvdiag_rdma_port_up", fallback=True),),
)
IP_SENT = Metric(
    name="kvdiag_ip_transmit_bytes_total",
    kind="counter",
    unit="bytes",
    labels=_NAMESPACE,
    help="Bytes that the kernel's IP stack sent (IpExt OutOctets): TCP and UDP, loopback too, RDMA of a NIC not.",
)
_COUNTERS = {
    "rx_bytes": _counter(
        "kvdiag_netdev_receive_bytes_total",
        "Bytes received.",
        "bytes",
        (Recorded(name="nic.rx_bytes", unit="B", fallback=1),),
    ),
    "tx_bytes": _counter(
        "kvdiag_netdev_transmit_bytes_total",
        "Bytes sent.",
        "bytes",
        (Recorded(name="nic.tx_bytes", unit="B", fallback=1),),
    ),
    "rx_packets": _counter("kvdiag_netdev_receive_packets_total", "Packets received."),
    "tx_packets": _counter("kvdiag_netdev_transmit_packets_total", "Packets sent."),
    "rx_errors": _counter("kvdiag_netdev_receive_errors_total", "Bad packets received."),
    "tx_errors": _counter("kvdiag_netdev_transmit_errors_total", "Packets that could not be sent."),
    "rx_dropped": _counter("kvdiag_netdev_receive_dropped_total", "Packets received and dropped before the stack."),
    "tx_dropped": _counter("kvdiag_netdev_transmit_dropped_total", "Packets dropped on the way out."),
}

LINK_DOWNS = _counter("kvdiag_netdev_link_downs_total", "Times the interface lost its carrier.")

METRICS = (UP, SPEED, LINK_DOWNS, RETRANSMITS, IP_RECEIVED, IP_SENT, *_COUNTERS.values())


class NetdevCollector:
    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self.missing: tuple[str, ...] = ()

    def collect(self) -> Iterator[Sample]:
        """Yield each namespace once per node: the host's without an engine, another with the first engine in it."""
        missing = []
        seen = set()
        scopes = [(self._setup.node, "", None), *((one.node, one.name, one.pid) for one in self._setup.engines)]
        for node, engine, pid in scopes:
            if engine and pid is None:
                continue
            found = read_namespace(self._setup.tree, pid)
            if isinstance(found, Missing):
                missing.append(found.missing)
            elif isinstance(found.namespace, Missing) and engine:
                missing.append(found.namespace.missing)
            elif (node, found.namespace) not in seen:
                seen.add((node, found.namespace))
                yield from _namespace(found, node, engine)
        self.missing = tuple(missing)


def _namespace(found: NetNamespace, node: str, engine: str) -> Iterator[Sample]:
    for device in found.devices:
        if engine or not any(fnmatch.fnmatch(device.name, pattern) for pattern in _HOST_ENDS):
            yield from _device(device, (node, engine, device.name))
    protocols = ((RETRANSMITS, "Tcp.RetransSegs"), (IP_RECEIVED, "IpExt.InOctets"), (IP_SENT, "IpExt.OutOctets"))
    for metric, name in protocols:
        if name in found.protocols:
            yield metric.sample(float(found.protocols[name]), node, engine)


def _device(device: NetDevice, labels: tuple[str, str, str]) -> Iterator[Sample]:
    for name, metric in _COUNTERS.items():
        yield metric.sample(float(getattr(device, name)), *labels)
    if not isinstance(device.speed_gbps, Missing):
        yield SPEED.sample(device.speed_gbps * 1e9 / 8, *labels)
    if not isinstance(device.link_downs, Missing):
        yield LINK_DOWNS.sample(float(device.link_downs), *labels)
    # Loopback and tunnels stay "unknown": neither up nor down.
    if device.operstate in ("up", "down", "lowerlayerdown"):
        yield UP.sample(float(device.operstate == "up"), *labels)


def create(setup: Setup) -> NetdevCollector:
    return NetdevCollector(setup)
