"""FAB010: RoCE packets reach the priority that is lossless and marked."""

import re

from kvdiag.checks.base import Check, Failed, Hosts, NotApplicable, NotObservable, Outcome, Passed
from kvdiag.derive.rdma import SOFTWARE_DRIVERS, active_ports, device_of, is_bond, is_roce, joined
from kvdiag.model.finding import Evidence, Finding, Severity
from kvdiag.model.missing import Missing, present
from kvdiag.model.rdma import Port, RdmaDevices
from kvdiag.model.roce_qos import InterfaceQos, RoceQos

CODE = "FAB010"
_VLAN = re.compile(r"\.\d{1,4}$|^vlan")


def run(hosts: Hosts) -> Outcome:
    devices = hosts.local.part(RdmaDevices)
    qos = hosts.local.part(RoceQos)
    if isinstance(devices, Missing):
        return NotObservable(devices.missing)
    ports = [
        port
        for port in active_ports(devices)
        if is_roce(device := device_of(devices, port), port) and device.driver not in SOFTWARE_DRIVERS
    ]
    if not ports:
        return NotApplicable("no ACTIVE RoCE port of a card")
    if isinstance(qos, Missing):
        return NotObservable(qos.missing)
    behind = {
        interface.name: (port, interface)
        for port in ports
        for interface in qos.of(device_of(devices, port).pci_address, whole_card=is_bond(hosts.local, port))
    }
    if not behind:
        return NotObservable(
            f"no interface of the card behind {joined(port.name for port in ports)} is seen, as in a container"
        )
    findings = [item for port, interface in behind.values() for item in _judge(port, interface, hosts.local.host)]
    if findings:
        return Failed(tuple(findings))
    interfaces = [interface for _, interface in behind.values()]
    unknown = [value for item in interfaces for value in (item.pfc, item.trust) if isinstance(value, Missing)]
    if unknown:
        return NotObservable(unknown[0].missing)
    lossless = [item.name for item in interfaces if item.pfc]
    strange = [item for item in interfaces if item.pfc and item.trust not in ("dscp", "pcp")]
    if strange:
        return NotObservable(f"/sys/class/net/{strange[0].name}/qos/trust holds neither dscp nor pcp")
    marks = [value for item in interfaces if item.pfc for value in (item.ecn_np, item.ecn_rp)]
    unmarked = [value for value in marks if isinstance(value, Missing)]
    if unmarked:
        return NotObservable(unmarked[0].missing)
    if not lossless:
        return NotApplicable(f"no lossless priority on {joined(item.name for item in interfaces)}: lossy RoCE")
    return Passed(f"{joined(lossless)}: DSCP is trusted, lossless priorities mark")


def _judge(port: Port, interface: InterfaceQos, host: str) -> list[Finding]:
    """Return what is wrong where flow control is on for a priority; without it the fabric is meant to be lossy."""
    if isinstance(interface.pfc, Missing) or not interface.pfc:
        return []
    priorities = ",".join(map(str, interface.pfc))
    found = []
    tagged = any(isinstance(gid.netdev, str) and _VLAN.search(gid.netdev) for gid in present(port.gids) or ())
    if interface.trust == "pcp" and not tagged:
        found.append(
            Finding(
                code=CODE,
                severity=Severity.WARNING,
                subject=interface.name,
                summary=(
                    f"priority {priorities} of {interface.name} is lossless, but DSCP is not trusted: RoCE packets "
                    "without a VLAN tag stay in priority 0"
                ),
                evidence=(
                    Evidence(
                        name="trust",
                        value="pcp",
                        source=f"/sys/class/net/{interface.name}/qos/trust",
                        threshold="dscp",
                    ),
                    Evidence(name="PFC", value=f"priority {priorities}", source=f"dcb pfc show dev {interface.name}"),
                ),
                action=f"mlnx_qos -i {interface.name} --trust dscp (and at every boot)",
                host=host,
                devices=(port.device,),
            )
        )
    for name, enabled in (("roce_np", interface.ecn_np), ("roce_rp", interface.ecn_rp)):
        off = [] if isinstance(enabled, Missing) else [p for p in interface.pfc if p not in enabled]
        if off:
            found.append(_unmarked(port, interface, name, off, host))
    return found


def _unmarked(port: Port, interface: InterfaceQos, name: str, off: list[int], host: str) -> Finding:
    role = (
        "sends no congestion notifications" if name == "roce_np" else "does not slow down on congestion notifications"
    )
    return Finding(
        code=CODE,
        severity=Severity.WARNING,
        subject=interface.name,
        summary=f"{interface.name} {role} in lossless priority {off[0]}: congestion then spreads by pause frames",
        evidence=(
            Evidence(
                name=f"{name} enable {off[0]}",
                value="0",
                source=f"/sys/class/net/{interface.name}/ecn/{name}/enable/{off[0]}",
                threshold="1",
            ),
        ),
        action="; ".join(f"echo 1 > /sys/class/net/{interface.name}/ecn/{name}/enable/{p}" for p in off),
        host=host,
        devices=(port.device,),
    )


CHECK = Check(code=CODE, title="RoCE packets reach the lossless priority", run=run)
