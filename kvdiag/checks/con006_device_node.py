"""CON006: the serving process can open the uverbs node of an RDMA device."""

from dataclasses import replace

from kvdiag.checks.base import Check, Failed, Hosts, NotApplicable, NotObservable, Outcome, Passed
from kvdiag.derive.rdma import joined
from kvdiag.model.finding import Evidence, Finding, Severity
from kvdiag.model.missing import Missing
from kvdiag.model.rdma import RdmaDevice, RdmaDevices
from kvdiag.model.serving import ServingProcess, ServingProcesses
from kvdiag.model.snapshot import Snapshot
from kvdiag.model.verbs import DeviceNode, DeviceNodes

CODE = "CON006"
_READ_WRITE = 0o6


def run(hosts: Hosts) -> Outcome:
    devices = hosts.local.part(RdmaDevices)
    if isinstance(devices, Missing):
        return NotObservable(devices.missing)
    if not devices.devices:
        return NotApplicable("no RDMA device on this host")
    without = [device for device in devices.devices if isinstance(device.uverbs, Missing)]
    if without and devices.uverbs_unread:
        return NotObservable(devices.uverbs_unread)
    if len(without) == len(devices.devices):
        return Failed((_no_uverbs(without, hosts.local.host),))
    nodes = hosts.local.part(DeviceNodes)
    if isinstance(nodes, Missing):
        return NotObservable(nodes.missing)
    pairs = [(device, nodes.named(device.uverbs)) for device in devices.devices]
    present = [(device, node) for device, node in pairs if node is not None]
    if not present:
        return Failed((_absent(devices.devices, hosts.local.host),))
    findings = tuple(
        _refused(process, [(device, node) for device, node in present if why(node, process)], hosts.local.host)
        for process in _users(hosts.local)
        if any(why(node, process) for _, node in present)
    )
    if findings:
        return Failed(findings)
    untried = [node for _, node in present if isinstance(node.open_error, Missing) and not _open_to_all(node)]
    if untried and _users(hosts.local) == (None,):
        return NotObservable(f"{untried[0].name} is not open to every user, and no serving process shows its user")
    rest = len(devices.devices) - len(present)
    # A pod is given the nodes of its own devices and still sees every device of the host in sysfs.
    spare = (
        f"; {rest} further device(s) have no node here, as in a container that was given some of them" if rest else ""
    )
    return Passed(f"{joined(node.name for _, node in present)} can be opened{spare}")


def _users(snapshot: Snapshot) -> tuple[ServingProcess | None, ...]:
    """Return whose access is judged: the serving processes, or kvdiag itself (None) where there is none."""
    serving = snapshot.part(ServingProcesses)
    known = () if isinstance(serving, Missing) else serving.processes
    seen: dict[tuple[object, object], ServingProcess] = {}
    for process in known:
        if not isinstance(process.uid, Missing):
            seen.setdefault((process.uid, process.groups), process)
    return tuple(seen.values()) or (None,)


def why(node: DeviceNode, process: ServingProcess | None) -> str:
    """Return why the user cannot open a node for reading and writing, or "" where it can or nothing says it cannot."""
    if process is None or process.uid == 0:
        return node.open_error if isinstance(node.open_error, str) else ""
    if isinstance(node.mode, Missing):
        return ""
    groups = () if isinstance(process.groups, Missing) else process.groups
    shift = 6 if process.uid == node.uid else 3 if node.gid in groups else 0
    if (node.mode >> shift) & _READ_WRITE == _READ_WRITE:
        return ""
    return f"mode {node.mode:04o}, owner {node.uid}:{node.gid}"


def _open_to_all(node: DeviceNode) -> bool:
    return not isinstance(node.mode, Missing) and node.mode & _READ_WRITE == _READ_WRITE


def _finding(
    devices: list[RdmaDevice], subject: str, summary: str, evidence: Evidence, action: str, host: str
) -> Finding:
    return Finding(
        code=CODE,
        severity=Severity.CRITICAL,
        subject=subject,
        summary=summary,
        evidence=(evidence,),
        action=action,
        host=host,
        devices=tuple(device.name for device in devices),
    )


def _no_uverbs(devices: list[RdmaDevice], host: str) -> Finding:
    return _finding(
        devices,
        joined(device.name for device in devices),
        "no RDMA device has a uverbs interface: the module ib_uverbs is not loaded",
        Evidence(name="uverbs", value=str(devices[0].uverbs), source="/sys/class/infiniband_verbs"),
        "modprobe -a ib_uverbs rdma_ucm",
        host,
    )


def _absent(devices: tuple[RdmaDevice, ...], host: str) -> Finding:
    wanted = joined(device.uverbs for device in devices if isinstance(device.uverbs, str))
    return _finding(
        list(devices),
        "/dev/infiniband",
        f"{len(devices)} RDMA device(s) in sysfs, but /dev/infiniband holds no node of them",
        Evidence(name="nodes of RDMA devices", value="0", source="/dev/infiniband", threshold=wanted),
        "give the container the nodes: docker run --device=/dev/infiniband, in Kubernetes a resource of the RDMA "
        "device plugin; on a host: mkdir -p /dev/infiniband; for u in /sys/class/infiniband_verbs/uverbs*; do "
        "mknod -m 0666 /dev/infiniband/${u##*/} c $(tr : ' ' < $u/dev); done",
        host,
    )


def _refused(process: ServingProcess | None, refused: list[tuple[RdmaDevice, DeviceNode]], host: str) -> Finding:
    device, node = refused[0]
    who = process.name if process else "kvdiag"
    user = f" (uid {process.uid})" if process else ""
    reason = why(node, process)
    names = joined(item.name for _, item in refused)
    files = " ".join(f"/dev/infiniband/{item.name}" for _, item in refused)
    action = f'chmod 0666 {files}, and for good a udev rule: KERNEL=="uverbs*", MODE="0666"'
    if reason == "Operation not permitted":
        action = (
            "the container's device rules refuse it: docker run --device=/dev/infiniband, or the RDMA device plugin"
        )
    found = _finding(
        [item for item, _ in refused],
        names,
        f"{who}{user} cannot open {names}: {reason}",
        Evidence(
            name=f"{node.name} ({device.name})", value=reason, source=f"/dev/infiniband/{node.name}", threshold="rw"
        ),
        action,
        host,
    )
    more = tuple(
        Evidence(
            name=f"{item.name} ({card.name})",
            value=why(item, process),
            source=f"/dev/infiniband/{item.name}",
            threshold="rw",
        )
        for card, item in refused[1:16]
    )
    return replace(found, evidence=(*found.evidence, *more))


CHECK = Check(code=CODE, title="uverbs nodes can be opened", run=run, explains=("CON001", "TRN001"))
