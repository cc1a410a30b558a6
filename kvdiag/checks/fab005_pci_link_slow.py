"""FAB005: the PCI link of each RDMA card carries what its port does."""

from kvdiag.checks.base import Check, Failed, Hosts, NotApplicable, NotObservable, Outcome, Passed
from kvdiag.derive.pci_rate import rate_gbps
from kvdiag.derive.rdma import SOFTWARE_DRIVERS, active_ports, attribute, device_of, is_bond, joined
from kvdiag.model.finding import Evidence, Finding, Severity
from kvdiag.model.missing import Missing, present
from kvdiag.model.pci_link import PciLink, PciLinks
from kvdiag.model.rdma import Port, RdmaDevices
from kvdiag.model.snapshot import Snapshot

CODE = "FAB005"


def run(hosts: Hosts) -> Outcome:
    devices = hosts.local.part(RdmaDevices)
    links = hosts.local.part(PciLinks)
    if isinstance(devices, Missing):
        return NotObservable(devices.missing)
    ports = [port for port in active_ports(devices) if device_of(devices, port).driver not in SOFTWARE_DRIVERS]
    if not ports:
        return NotApplicable("no ACTIVE port of an RDMA card")
    if isinstance(links, Missing):
        return NotObservable(links.missing)
    findings = []
    judged = []
    hidden = []
    for port in ports:
        link = links.at(device_of(devices, port).pci_address)
        if link is None:
            hidden.append(f"{port.device} is no PCI function that /sys/bus/pci shows")
            continue
        if isinstance(link.speed_gtps, Missing):
            hidden.append(link.speed_gtps.missing)
            continue
        if isinstance(link.width, Missing):
            hidden.append(link.width.missing)
            continue
        judged.append(f"{port.device} {link.speed_gtps:g} GT/s ×{link.width}")
        found = _judge(hosts.local, links, port, link, link.speed_gtps, link.width)
        if found is not None:
            findings.append(found)
        elif isinstance(port.rate_gbps, Missing):
            hidden.append(port.rate_gbps.missing)
    if findings:
        return Failed(tuple(findings))
    if hidden:
        return NotObservable(hidden[0])
    return Passed(joined(judged))


def _judge(local: Snapshot, links: PciLinks, port: Port, link: PciLink, speed: float, width: int) -> Finding | None:
    above = links.at(link.path[-2]) if len(link.path) > 1 else None
    ends = [link] if above is None else [link, above]
    most_speed = min((end.max_speed_gtps for end in ends if isinstance(end.max_speed_gtps, float)), default=speed)
    most_width = min((end.max_width for end in ends if isinstance(end.max_width, int)), default=width)
    carried = rate_gbps(speed, width)
    wanted = f"{most_speed:g} GT/s ×{most_width}, {rate_gbps(most_speed, most_width):.0f} Gb/s"
    if trained_down := speed < most_speed or width < most_width:
        why = f"trained down from {most_speed:g} GT/s ×{most_width}"
    elif not is_bond(local, port) and carried < (present(port.rate_gbps) or 0.0):
        why = f"slower than the port ({port.rate_gbps:g} Gb/s)"
        wanted = f"{port.rate_gbps:g} Gb/s, the port's rate"
    else:
        return None
    base = f"/sys/bus/pci/devices/{link.address}"
    return Finding(
        code=CODE,
        severity=Severity.WARNING,
        subject=port.device,
        summary=(
            f"the PCI link of {port.device} runs at {speed:g} GT/s ×{width}, {why}: at most {carried:.0f} Gb/s pass"
        ),
        evidence=(
            Evidence(
                name="current link",
                value=f"{speed:g} GT/s ×{width}, {carried:.0f} Gb/s",
                source=f"{base}/current_link_{{speed,width}}",
                threshold=wanted,
            ),
            Evidence(name="port rate", value=str(port.rate_text), source=attribute(port, "rate")),
        ),
        action=(
            f"reseat the card or its riser, and compare the slot: lspci -vvs {link.address} | grep -E 'LnkCap|LnkSta'"
            if trained_down
            else f"move {port.device} ({link.address}) to a slot with more lanes or a newer PCI generation"
        ),
        host=local.host,
        devices=(port.device,),
    )


CHECK = Check(code=CODE, title="PCI links carry what the ports do", run=run)
