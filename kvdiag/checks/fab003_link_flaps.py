"""FAB003: the links of ACTIVE ports stay up."""

from collections.abc import Iterable
from itertools import pairwise

from kvdiag.checks.base import Check, Failed, Hosts, NotApplicable, NotObservable, Outcome, Passed
from kvdiag.derive.kernel_lines import evidence, matching
from kvdiag.derive.rdma import SOFTWARE_DRIVERS, active_ports, attribute, device_of, joined
from kvdiag.model.finding import Evidence, Finding, Severity
from kvdiag.model.missing import Missing, present
from kvdiag.model.rdma import Port, RdmaCounters, RdmaDevices
from kvdiag.model.roce_qos import RoceQos
from kvdiag.model.snapshot import Snapshot

CODE = "FAB003"
_MANY = 10
"""gpud's experience: any link_downed since boot is worth a look, ten are a strong sign of flapping. The counter
saturates at 255."""
_CHANGES_PER_DOWN = 2
_WITHIN_S = 300.0
"""Two downs within five minutes are one flapping link, not two pieces of work on it (gpud)."""
_DOWN = r"(?:mlx5_core|bnxt_en|ice|ionic) \S+ ([\w.-]+): (?:NIC )?Link (?:is )?[Dd]own"


def run(hosts: Hosts) -> Outcome:
    devices = hosts.local.part(RdmaDevices)
    if isinstance(devices, Missing):
        return NotObservable(devices.missing)
    ports = [port for port in active_ports(devices) if device_of(devices, port).driver not in SOFTWARE_DRIVERS]
    if not ports:
        return NotApplicable("no ACTIVE port of an RDMA card")
    findings = []
    seen = []
    uncounted = []
    for port in ports:
        counted = _downs(hosts.local, devices, port)
        if counted is None:
            uncounted.append(port.name)
        else:
            downs, shown = counted
            seen.append(f"{port.name} {downs}")
            if downs:
                findings.append(_counted(port, downs, shown, _look(devices, port), hosts.local.host))
    lines = matching(hosts.local, _DOWN)
    for name in dict.fromkeys(line.match[1] for line in present(lines) or ()):
        own = [line for line in present(lines) or () if line.match[1] == name]
        if _flaps(line.seconds for line in own):
            findings.append(_logged(hosts.local, name, len(own), evidence(hosts.local, own)))
    if findings:
        return Failed(tuple(findings))
    if uncounted:
        return NotObservable(f"nothing counts how often the links of {joined(uncounted)} went down")
    if isinstance(lines, Missing):
        return NotObservable(lines.missing)
    return Passed(f"times that links went down since the driver was loaded: {joined(seen)}")


def _downs(local: Snapshot, devices: RdmaDevices, port: Port) -> tuple[int, Evidence] | None:
    """Return how often a port's link went down, from the card's own counter, else from the interface's carrier."""
    counters = present(local.part(RdmaCounters))
    for item in counters.ports if counters else ():
        if (item.device, item.port) == (port.device, port.number) and "link_downed" in item.counters:
            downs = item.counters["link_downed"]
            return downs, Evidence(
                name="link_downed",
                value=f"{downs}{' (saturated)' if downs >= 255 else ''}",
                source=attribute(port, "counters/link_downed"),
                threshold=f"0; {_MANY} or more is flapping",
            )
    qos = present(local.part(RoceQos))
    for interface in qos.of(device_of(devices, port).pci_address) if qos else ():
        changes = interface.carrier_changes
        if not isinstance(changes, Missing):
            # Going up at boot is a change too, and drivers make a few more: only many of them say something.
            downs = changes // _CHANGES_PER_DOWN
            return (downs if downs >= _MANY else 0), Evidence(
                name="carrier_changes",
                value=str(changes),
                source=f"/sys/class/net/{interface.name}/carrier_changes",
                threshold=f"below {_MANY * _CHANGES_PER_DOWN}",
            )
    return None


def _flaps(seconds: Iterable[float | None]) -> bool:
    known = sorted(value for value in seconds if value is not None)
    return any(later - earlier <= _WITHIN_S for earlier, later in pairwise(known))


def _look(devices: RdmaDevices, port: Port) -> str:
    """Return the command that shows a link's optical power and errors."""
    if device_of(devices, port).driver == "mlx5_core":
        return f"mlxlink -d {port.device} -m -e"
    netdevs = [gid.netdev for gid in present(port.gids) or () if isinstance(gid.netdev, str)]
    return f"ethtool -m {netdevs[0]}" if netdevs else f"rdma link show {port.name}"


def _counted(port: Port, downs: int, shown: Evidence, look: str, host: str) -> Finding:
    many = downs >= _MANY
    return Finding(
        code=CODE,
        severity=Severity.WARNING if many else Severity.INFO,
        subject=port.name,
        summary=(
            f"the link of {port.name} went down {'at least ' if downs >= 255 else ''}{downs} time(s) since the driver "
            f"was loaded{': it flaps' if many else ''}"
        ),
        evidence=(shown,),
        action=(
            f"reseat or replace cable and transceiver of {port.name} ({look}); till then leave it out of device lists"
            if many
            else f"look again in an hour: a number that grows is a link to replace ({look})"
        ),
        host=host,
        devices=(port.device,),
    )


def _logged(local: Snapshot, name: str, count: int, shown: tuple[Evidence, ...]) -> Finding:
    return Finding(
        code=CODE,
        severity=Severity.WARNING,
        subject=name,
        summary=f"the link of {name} went down {count} time(s), twice within {_WITHIN_S / 60:.0f} minutes: it flaps",
        evidence=shown,
        action=f"reseat or replace cable and transceiver of {name} (ethtool -m {name}); look at the switch port's log",
        host=local.host,
    )


CHECK = Check(code=CODE, title="links stay up", run=run)
