"""CNT008: the bytes of every ACTIVE port are counted somewhere."""

from kvdiag.checks.base import Check, Failed, Hosts, NotApplicable, NotObservable, Outcome, Passed
from kvdiag.derive.port_traffic import sent
from kvdiag.derive.rdma import SOFTWARE_DRIVERS, active_ports, attribute, device_of, joined, netdev_of
from kvdiag.model.finding import Evidence, Finding, Severity
from kvdiag.model.missing import Missing
from kvdiag.model.rdma import Port, RdmaCounters, RdmaDevices

CODE = "CNT008"
_PACKETS_ONLY = SOFTWARE_DRIVERS | {"ice", "irdma", "i40e"}
"""rdma_rxe and irdma count packets or octets per protocol, and no bytes of RDMA, by design."""


def run(hosts: Hosts) -> Outcome:
    devices, counters = hosts.local.part(RdmaDevices), hosts.local.part(RdmaCounters)
    if isinstance(devices, Missing):
        return NotObservable(devices.missing)
    if isinstance(counters, Missing):
        return NotObservable(counters.missing)
    by_port = {(item.device, item.port): item for item in counters.ports}
    ports = [
        (port, by_port[port.device, port.number])
        for port in active_ports(devices)
        if (port.device, port.number) in by_port and device_of(devices, port).driver not in _PACKETS_ONLY
    ]
    if not ports:
        return NotApplicable("no ACTIVE port whose driver counts bytes")
    blind = [port for port, counted in ports if sent(counted, port) is None]
    if not blind:
        sources = dict.fromkeys(
            traffic.source.partition("/ports/")[2].partition("/")[2]
            for port, counted in ports
            if (traffic := sent(counted, port)) is not None
        )
        return Passed(f"bytes of {len(ports)} port(s) from {joined(sources)}")
    if all(device_of(devices, port).is_vf for port in blind):
        return NotObservable(f"{joined(port.name for port in blind)}: a virtual function may have no byte counter")
    return Failed(
        (
            Finding(
                code=CODE,
                # Transfers are not concerned; what can be proved about them is.
                severity=Severity.INFO,
                subject=joined(port.name for port in blind),
                summary=(
                    f"nothing counts the bytes of {joined(port.name for port in blind)}: whether transfers use these "
                    "ports cannot be seen, and a panel of traffic shows zero"
                ),
                evidence=tuple(
                    Evidence(
                        name=port.name,
                        value="neither port_xmit_data nor tx_bytes",
                        source=f"{attribute(port, 'counters')} and {attribute(port, 'hw_counters')}",
                        threshold="one of them",
                    )
                    for port in blind[:4]
                ),
                action=_action(blind),
                host=hosts.local.host,
                devices=tuple(port.device for port in blind),
            ),
        )
    )


def _action(blind: list[Port]) -> str:
    names = dict.fromkeys(name for port in blind if (name := netdev_of(port)) is not None)
    look = "; ".join(f"ethtool -S {name} | grep -E 'vport_rdma|tx_bytes'" for name in list(names)[:4])
    return look or f"ethtool -S IFACE | grep -E 'vport_rdma|tx_bytes' for the interfaces of {blind[0].device}"


CHECK = Check(
    code=CODE, title="bytes of RDMA ports are counted", run=run, explained_by=("CNT001", "CNT002", "CNT003", "CNT004")
)
