"""LIM003: no card has refused a queue pair, completion queue or memory key for want of room."""

from kvdiag.checks.base import Check, Failed, Hosts, NotApplicable, NotObservable, Outcome, Passed
from kvdiag.derive.kernel_lines import Line, evidence, matching
from kvdiag.derive.rdma import joined
from kvdiag.model.finding import Evidence, Finding, Severity
from kvdiag.model.missing import Missing, present
from kvdiag.model.rdma import RdmaDevice, RdmaDevices
from kvdiag.model.rdma_resources import RdmaResources
from kvdiag.model.snapshot import Snapshot
from kvdiag.model.verbs import VerbsDevices

CODE = "LIM003"
_LINE = r"mlx5_core ([0-9a-f:]+\.[0-7]): .*CREATE_(\w+)\(0x[0-9a-f]+\).*status limits exceeded\(0x8\)"
"""As mlx5_core logs a firmware command that failed (drivers/net/ethernet/mellanox/mlx5/core/cmd.c)."""


def run(hosts: Hosts) -> Outcome:
    devices = hosts.local.part(RdmaDevices)
    if isinstance(devices, Missing):
        return NotObservable(devices.missing)
    if not any(device.driver == "mlx5_core" for device in devices.devices):
        return NotApplicable("no card of the mlx5 driver, whose log lines are known")
    lines = matching(hosts.local, _LINE)
    if isinstance(lines, Missing):
        return NotObservable(lines.missing)
    if not lines:
        return Passed("the kernel log has no command that a card refused with `limits exceeded`")
    by_card: dict[str, list[Line]] = {}
    for line in lines:
        by_card.setdefault(line.match[1], []).append(line)
    return Failed(tuple(_finding(hosts.local, devices, address, found) for address, found in by_card.items()))


def _finding(local: Snapshot, devices: RdmaDevices, address: str, lines: list[Line]) -> Finding:
    device = next((device for device in devices.devices if device.pci_address == address), None)
    name = device.name if device else address
    objects = joined(dict.fromkeys(line.match[2] for line in lines))
    return Finding(
        code=CODE,
        severity=Severity.WARNING,
        subject=name,
        summary=f"{name} has refused to create {objects}: limits exceeded (since the kernel's log begins)",
        evidence=(*evidence(local, lines), *(_use(local, device) if device else ())),
        action=(
            f"rdma resource show{f' {name}' if device else ''}; end leaking processes, then compare fw_ver with a node "
            "that works: the limit can be reached far below max_qp, and firmware differs in it"
        ),
        host=local.host,
        devices=(device.name,) if device else (),
    )


def _use(local: Snapshot, device: RdmaDevice) -> tuple[Evidence, ...]:
    """Return what is in use beside the card's own limit; near to it or not, the card has refused."""
    resources = present(local.part(RdmaResources))
    verbs = present(local.part(VerbsDevices))
    found = [Evidence(name="fw_ver", value=str(device.fw_ver), source=f"/sys/class/infiniband/{device.name}/fw_ver")]
    for summary in resources.summaries if resources else ():
        if summary.device == device.name:
            most = verbs.limit(device.name, "max_qp") if verbs else Missing("")
            used = " ".join(f"{kind} {count}" for kind, count in summary.counts.items())
            threshold = None if isinstance(most, Missing) else f"below max_qp {most}"
            found.append(Evidence(name="in use now", value=used, source="rdma resource show", threshold=threshold))
    return tuple(found)


CHECK = Check(code=CODE, title="no card has refused a queue pair", run=run, explained_by=("LIM004",))
