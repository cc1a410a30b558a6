"""FAB013: a card does not ask its senders to pause."""

import re

from kvdiag.checks.base import Check, Failed, Hosts, NotApplicable, NotObservable, Outcome, Passed
from kvdiag.derive.rdma import active_ports, device_of, is_roce, joined
from kvdiag.model.finding import Evidence, Finding, Severity
from kvdiag.model.missing import Missing
from kvdiag.model.nic_counters import AllNicCounters, NicCounters
from kvdiag.model.rdma import RdmaDevices

CODE = "FAB013"
_FRAMES = tuple(
    re.compile(pattern)
    for pattern in (
        r"([rt]x)_prio\d_pause$",
        r"([rt]x)_pfc_ena_frames_pri\d$",
        r"([rt]x)_priority_\d_xoff\.nic$",
        r"([rt]x)_(?:pause_ctrl_phy|pause_frames|global_pause)$",
    )
)
"""Names of mlx5, bnxt_en and ice; the last, of all priorities together, only where there are none by priority."""


def run(hosts: Hosts) -> Outcome:
    devices = hosts.local.part(RdmaDevices)
    nics = hosts.local.part(AllNicCounters)
    if isinstance(devices, Missing):
        return NotObservable(devices.missing)
    addresses = {
        device.pci_address: device.name
        for port in active_ports(devices)
        if is_roce(device := device_of(devices, port), port) and isinstance(device.pci_address, str)
    }
    if not addresses:
        return NotApplicable("no ACTIVE RoCE port")
    if isinstance(nics, Missing):
        return NotObservable(nics.missing)
    behind = [nic for nic in nics.interfaces if nic.pci_address in addresses]
    counted = [(nic, frames) for nic in behind if (frames := _frames(nic)) is not None]
    findings = tuple(
        _finding(nic, addresses[nic.pci_address], *frames, hosts.local.host) for nic, frames in counted if frames[0]
    )
    if findings:
        return Failed(findings)
    if len(counted) < len(behind) or not behind:
        why = next((nic.unreadable for nic in behind if nic.unreadable), "")
        where = "" if behind else ": no interface of the card is, as in a container"
        return NotObservable(why or f"no pause counters of {joined(addresses.values())} are seen{where}")
    return Passed(f"no pause frame was sent by {joined(nic.name for nic, _ in counted)}")


def _frames(nic: NicCounters) -> tuple[int, int] | None:
    """Return the pause frames sent and received since the driver was loaded; None where none are counted."""
    for pattern in _FRAMES:
        matched = [(match[1], value) for name, value in nic.counters.items() if (match := pattern.match(name))]
        if matched:
            sent, received = (sum(value for way, value in matched if way == wanted) for wanted in ("tx", "rx"))
            return sent, received
    return None


def _finding(nic: NicCounters, device: str, sent: int, received: int, host: str) -> Finding:
    return Finding(
        code=CODE,
        severity=Severity.INFO,
        subject=nic.name,
        summary=(
            f"{nic.name} asked its senders to pause {sent} time(s): consistent with a host that takes data more slowly "
            "than it arrives"
        ),
        evidence=(
            Evidence(
                name="pause frames",
                value=f"{sent} sent, {received} received",
                source=f"ethtool -S {nic.name}",
                threshold="0 sent",
            ),
        ),
        action=(
            f"read them again under load: ethtool -S {nic.name} | grep -E 'tx.*(pause|xoff)'; if they grow: FAB005, "
            "GDR012, GDR013 and the NUMA node of the receiving memory"
        ),
        host=host,
        devices=(device,),
    )


CHECK = Check(code=CODE, title="no card pauses its senders", run=run)
