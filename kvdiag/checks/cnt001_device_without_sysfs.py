"""CNT001: the RDMA devices listed in sysfs can be followed to what they are."""

from kvdiag.checks.base import Check, Failed, Hosts, NotApplicable, NotObservable, Outcome, Passed
from kvdiag.derive.rdma import joined
from kvdiag.model.finding import Evidence, Finding, Severity
from kvdiag.model.missing import Missing
from kvdiag.model.rdma import RdmaDevices
from kvdiag.model.serving import ServingProcesses

CODE = "CNT001"


def run(hosts: Hosts) -> Outcome:
    devices = hosts.local.part(RdmaDevices)
    if isinstance(devices, Missing):
        return NotObservable(devices.missing)
    if not devices.devices:
        return NotApplicable("no RDMA device")
    dangling = [device for device in devices.devices if isinstance(device.sysfs_path, Missing)]
    if not dangling:
        return Passed(f"{len(devices.devices)} device(s), each leads to its folder in /sys/devices")
    first = dangling[0].sysfs_path
    return Failed(
        (
            Finding(
                code=CODE,
                severity=Severity.CRITICAL,
                subject=joined(device.name for device in dangling),
                summary=(
                    f"{len(dangling)} of {len(devices.devices)} RDMA devices are listed, but lead nowhere: no state, "
                    "address or counter of them can be read here"
                ),
                evidence=(
                    Evidence(
                        name=f"/sys/class/infiniband/{dangling[0].name}",
                        value=first.missing if isinstance(first, Missing) else str(first),
                        source="/sys/class/infiniband",
                        threshold="a link into /sys/devices that exists",
                    ),
                ),
                action=_action(hosts),
                host=hosts.local.host,
                devices=tuple(device.name for device in dangling),
            ),
        )
    )


def _action(hosts: Hosts) -> str:
    serving = hosts.local.part(ServingProcesses)
    groups = [] if isinstance(serving, Missing) else [process.cgroup for process in serving.processes]
    if any(isinstance(group, str) and "kubepods" in group for group in groups):
        return (
            "mount it into the pod: volumes: [{name: sys-devices, hostPath: {path: /sys/devices}}], volumeMounts: "
            "[{name: sys-devices, mountPath: /sys/devices, readOnly: true}]"
        )
    return "start the container with -v /sys/devices:/sys/devices:ro"


CHECK = Check(
    code=CODE,
    title="listed RDMA devices exist in sysfs",
    run=run,
    explains=("CNT002", "CNT008", "CON001", "CON006", "FAB002", "GID001", "GID002", "TRN001", "TRN002", "TRN013"),
)
