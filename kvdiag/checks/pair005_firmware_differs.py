"""PAIR005: cards of one model run one firmware, and the same driver and kernel, on both ends."""

from kvdiag.checks.base import Check, Failed, Hosts, NotApplicable, NotObservable, Outcome, Passed
from kvdiag.derive.pairs import used_ports
from kvdiag.derive.rdma import SOFTWARE_DRIVERS, device_of, half_known, joined, model
from kvdiag.model.finding import Evidence, Finding, Severity
from kvdiag.model.kernel import Kernel
from kvdiag.model.missing import Missing, present
from kvdiag.model.rdma import RdmaDevices
from kvdiag.model.snapshot import Snapshot

CODE = "PAIR005"


def run(hosts: Hosts) -> Outcome:
    if not hosts.peers:
        return NotApplicable("no peer given: name one with --peer HOST:PORT")
    ours = _versions(hosts.local)
    if isinstance(ours, Missing):
        return NotObservable(ours.missing)
    findings, compared = [], 0
    for peer in hosts.peers:
        theirs = _versions(peer)
        if isinstance(theirs, Missing):
            return NotObservable(theirs.missing)
        both = [name for name in ours if name in theirs]
        compared += any(name.startswith("firmware") for name in both)
        differing = [name for name in both if ours[name] != theirs[name]]
        if differing:
            findings.append(_finding(hosts.local, ours, peer, theirs, differing))
    if findings:
        return Failed(tuple(findings))
    hidden = _hidden((hosts.local, *hosts.peers)) if compared else None
    if hidden is not None:
        return NotObservable(hidden.missing)
    if not compared:
        return NotApplicable("no card of one model here and at a peer")
    return Passed(joined(f"{name} {ours[name]}" for name in sorted(ours)))


def _versions(snapshot: Snapshot) -> dict[str, str] | Missing:
    devices = snapshot.part(RdmaDevices)
    if isinstance(devices, Missing):
        return devices
    found: dict[str, set[str]] = {}
    for port in present(used_ports(snapshot)) or ():
        device = device_of(devices, port)
        if isinstance(device.fw_ver, str) and device.fw_ver.strip("0.") and model(device):
            found.setdefault(f"firmware of {' '.join(model(device))}", set()).add(device.fw_ver)
        if isinstance(device.driver, str):
            found.setdefault("driver", set()).add(device.driver)
    kernel = snapshot.part(Kernel)
    if found and not isinstance(kernel, Missing) and isinstance(kernel.release, str):
        found["kernel"] = {kernel.release}
    return {name: joined(sorted(values)) for name, values in found.items()}


def _hidden(snapshots: tuple[Snapshot, ...]) -> Missing | None:
    """Return why the version of something that is to be compared cannot be seen."""
    used = []
    for snapshot in snapshots:
        devices, kernel = snapshot.part(RdmaDevices), snapshot.part(Kernel)
        release = kernel if isinstance(kernel, Missing) else kernel.release
        if isinstance(release, Missing):
            return release
        if not isinstance(devices, Missing):
            used += [device_of(devices, port) for port in present(used_ports(snapshot)) or ()]
    cards = [device for device in used if device.driver not in SOFTWARE_DRIVERS]
    values = (value for device in cards for value in (device.fw_ver, device.driver))
    return next((value for value in values if isinstance(value, Missing)), half_known(cards))


def _finding(
    local: Snapshot, ours: dict[str, str], peer: Snapshot, theirs: dict[str, str], differing: list[str]
) -> Finding:
    return Finding(
        code=CODE,
        # Most mixtures work. It is worth knowing when a pair misbehaves in one direction only.
        severity=Severity.INFO,
        subject=peer.host,
        summary=f"{local.host} and {peer.host} differ in {joined(differing)}",
        evidence=tuple(
            Evidence(
                name=name,
                value=f"{ours[name]} here, {theirs[name]} on {peer.host}",
                source="/proc/sys/kernel/osrelease" if name == "kernel" else "/sys/class/infiniband/*/fw_ver, driver",
                threshold="alike on both ends",
            )
            for name in differing
        ),
        action="bring both ends to one version before looking for a fault that only one direction or one host shows",
        host=local.host,
    )


CHECK = Check(code=CODE, title="firmware, driver and kernel are those of the peer", run=run, explained_by=("VND004",))
