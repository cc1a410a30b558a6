"""FAB002: every port that should carry traffic is ACTIVE."""

from collections import defaultdict
from collections.abc import Sequence

from kvdiag.checks.base import Check, Failed, Hosts, NotApplicable, NotObservable, Outcome, Passed
from kvdiag.derive.rdma import active_ports, attribute, device_of, joined, model, one_card
from kvdiag.model.finding import Evidence, Finding, Severity
from kvdiag.model.missing import Missing, present
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
    in_use = [device_of(devices, port) for port in active]
    down = [port for port in ports if isinstance(port.state, str) and port not in active]
    unused = [port for port in down if any(one_card(device_of(devices, port), device) for device in in_use)]
    alike: dict[tuple[Severity, str, str], list[Port]] = defaultdict(list)
    for port in down:
        if port not in unused:
            alike[_severity(port, devices, active), str(port.state), str(port.phys_state)].append(port)
    if alike:
        findings = (
            _finding(severity, same, devices, active, hosts.local.host) for (severity, *_), same in alike.items()
        )
        return Failed(tuple(findings))
    if unread:
        return NotObservable(unread[0].missing)
    spare = f"; {joined(port.name for port in unused)} unused beside an ACTIVE port of the same card" if unused else ""
    return Passed(f"{len(active)} of {len(ports)} port(s) ACTIVE{spare}")


def _severity(port: Port, devices: RdmaDevices, active: Sequence[Port]) -> Severity:
    make = model(device_of(devices, port))
    alike = [device for device in devices.devices if model(device) == make]
    alike_active = [other for other in active if model(device_of(devices, other)) == make]
    if not active or 2 * len(alike_active) > len(alike):
        return Severity.CRITICAL
    # A card of another make than those that carry traffic is likely meant for something else.
    return Severity.WARNING if alike_active else Severity.INFO


def _finding(
    severity: Severity, ports: Sequence[Port], devices: RdmaDevices, active: Sequence[Port], host: str
) -> Finding:
    port = ports[0]
    names = joined(port.name for port in ports)
    evidence = [
        Evidence(name="state", value=str(port.state), source=attribute(port, "state"), threshold="ACTIVE"),
        Evidence(name="phys_state", value=str(port.phys_state), source=attribute(port, "phys_state")),
        Evidence(
            name="ACTIVE ports",
            value=f"{len(active)} of {len(devices.ports)} on this host",
            source="/sys/class/infiniband/*/ports/*/state",
        ),
    ]
    return Finding(
        code=CODE,
        severity=severity,
        subject=names,
        summary=f"{f'port {names} is' if len(ports) == 1 else f'ports {names} are'} {port.state}{_cause(port)}",
        evidence=tuple(evidence),
        action=_action(ports, active),
        host=host,
        devices=tuple(dict.fromkeys(port.device for port in ports)),
    )


def _cause(port: Port) -> str:
    if port.state == "INIT":
        return ": the link is up but no subnet manager has configured it"
    if port.phys_state == "Disabled":
        return " and disabled by this host"
    if port.phys_state == "Polling":
        return " and finds no link partner"
    return ""


def _action(ports: Sequence[Port], active: Sequence[Port]) -> str:
    port = ports[0]
    names = joined(port.name for port in ports)
    if port.state == "INIT":
        ask = f"sminfo -C {port.device} -P {port.number}"
        if any(other.link_layer == "InfiniBand" for other in active):
            return (
                f"a subnet manager runs, for other ports are ACTIVE: {ask} shows whether it answers {port.name}; read "
                "its log for why it leaves the port out; where none answers (a fabric of its own), start one there"
            )
        return f"start a subnet manager on this fabric (opensm, or the switch's own), then: {ask}; ibstat {port.device}"
    netdevs = dict.fromkeys(
        gid.netdev for port in ports for gid in present(port.gids) or () if isinstance(gid.netdev, str)
    )
    if port.phys_state == "Disabled":
        if port.link_layer == "InfiniBand":
            return " && ".join(f"ibportstate -C {one.device} -D 0 {one.number} enable" for one in ports)
        up = " && ".join(f"ip link set {netdev} up" for netdev in netdevs)
        return up or f"bring up the interfaces of {names} (rdma link show)"
    interface = f", ethtool {next(iter(netdevs))}" if netdevs else ""
    look = f"mlxlink -d {port.device} --port {port.number}{interface}"
    return f"check cable, transceiver and switch port of {names} ({look})"


CHECK = Check(code=CODE, title="ports are ACTIVE", run=run)
