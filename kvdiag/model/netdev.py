"""The network interfaces of one network namespace, with their counters."""

from dataclasses import dataclass

from kvdiag.model.missing import Missing


@dataclass(frozen=True, slots=True, kw_only=True)
class NetDevice:
    """Bytes, packets and counts as /proc/PID/net/dev shows them; `speed_gbps` in 10^9 bit/s; `link_downs` how often the
    carrier was lost since the interface exists.
    """

    name: str
    rx_bytes: int
    rx_packets: int
    rx_errors: int
    rx_dropped: int
    tx_bytes: int
    tx_packets: int
    tx_errors: int
    tx_dropped: int
    speed_gbps: float | Missing
    operstate: str | Missing
    link_downs: int | Missing


@dataclass(frozen=True, slots=True, kw_only=True)
class NetNamespace:
    """`namespace` as its link reads ("net:[4026531840]"); `protocols` the counters of /proc/PID/net/{snmp,netstat} by
    `Group.Name` ("Tcp.RetransSegs"), and `protocols_missing` why there are none ("" where there are).
    """

    namespace: str | Missing
    devices: tuple[NetDevice, ...]
    protocols: dict[str, int]
    protocols_missing: str
