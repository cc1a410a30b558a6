"""FAB002: every port that should carry traffic is ACTIVE."""

from collections.abc import Sequence

from kvdiag.checks.base import Check, Failed, Hosts, NotApplicable, NotObservable, Outcome, Passed
from kvdiag.derive.rdma import active_ports, attribute, card, device_of, joined, model
from kvdiag.model.finding import Evidence, Finding, Severity
from kvdiag.model.missing import Missing
from kvdiag.model.rdma import Port, RdmaDevices

CODE = "FAB002"


def run(hosts: Hosts) -> Outcome:
    devices = hosts.local.part(RdmaDevices)
    if isinstance(devices, Missing):
        return NotObservable(devices.missing)
    ports = devices.ports
    if not ports:
        return NotApplicable("no RDMA port on this host")
    unread = [port.state for port in ports if isinstance(port.state, Missing)]
    if len(unread) == len(ports):
        return NotObservable(unread[0].missing)
    active = active_ports(devices)
    in_use = {card(device_of(devices, port)) for port in active}
    down = [port for port in ports if isinstance(port.state, str) and port not in active]
    unused = [port for port in down if card(device_of(devices, port)) in in_use]
    findings = tuple(_finding(port, devices, active, hosts.local.host) for port in down if port not in unused)
    if findings:
        return Failed(findings)
    if unread:
        return NotObservable(unread[0].missing)
    spare = f"; {joined(port.name for port in unused)} unused beside an ACTIVE port of the same card" if unused else ""
    return Passed(f"{len(active)} of {len(ports)} port(s) ACTIVE{spare}")


def _finding(port: Port, devices: RdmaDevices, active: Sequence[Port], host: str) -> Finding:
    make = model(device_of(devices, port))
    alike = [device for device in devices.devices if model(device) == make]
    alike_active = [other for other in active if model(device_of(devices, other)) == make]
    if not active or 2 * len(alike_active) > len(alike):
        severity = Severity.CRITICAL
    elif alike_active:
        severity = Severity.WARNING
    else:
        # A card of another make than those that carry traffic: likely meant for something else.
        severity = Severity.INFO
    evidence = [
        Evidence(name="state", value=str(port.state), source=attribute(port, "state"), threshold="ACTIVE"),
        Evidence(name="phys_state", value=str(port.phys_state), source=attribute(port, "phys_state")),
        Evidence(
            name="ACTIVE ports",
            value=f"{len(active)} of {len(devices.ports)} on this host, {len(alike_active)} on cards of this make",
            source="/sys/class/infiniband/*/ports/*/state",
        ),
    ]
    return Finding(
        code=CODE,
        severity=severity,
        subject=port.name,
        summary=f"port {port.name} is {port.state}{_cause(port)}",
        evidence=tuple(evidence),
        action=_action(port),
        host=host,
        devices=(port.device,),
    )


def _cause(port: Port) -> str:
    if port.state == "INIT":
        return ": the link is up but no subnet manager has configured it"
    if port.phys_state == "Disabled":
        return " and disabled by this host"
    if port.phys_state == "Polling":
        return " and finds no link partner"
    return ""


def _action(port: Port) -> str:
    if port.state == "INIT":
        return "start a subnet manager on this fabric (opensm, or the switch's own), then: ibstat " + port.device
    netdevs = () if isinstance(port.gids, Missing) else (gid.netdev for gid in port.gids)
    netdev = next((name for name in netdevs if isinstance(name, str)), None)
    if port.phys_state == "Disabled":
        return (
            f"ip link set {netdev} up"
            if netdev
            else f"bring up the interface of {port.name}: rdma link show {port.name}"
        )
    return (
        f"check cable, transceiver and switch port of {port.name} (mlxlink -d {port.device} --port {port.number}, "
        f"ethtool {netdev or 'IFACE'})"
    )


CHECK = Check(code=CODE, title="ports are ACTIVE", run=run)
