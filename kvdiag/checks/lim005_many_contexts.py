"""LIM005: no device holds far more open contexts than it has users."""

from kvdiag.checks.base import Check, Failed, Hosts, NotApplicable, NotObservable, Outcome, Passed
from kvdiag.derive.rdma import joined
from kvdiag.model.finding import Evidence, Finding, Severity
from kvdiag.model.missing import Missing
from kvdiag.model.rdma import RdmaDevices
from kvdiag.model.rdma_resources import RdmaResources

CODE = "LIM005"
_MANY = 1024
"""Contexts on one device: a process opens a handful per device. A public report had 4027 on cards that nothing used."""


def run(hosts: Hosts) -> Outcome:
    devices = hosts.local.part(RdmaDevices)
    if isinstance(devices, RdmaDevices) and not devices.devices:
        return NotApplicable("no RDMA device on this host")
    resources = hosts.local.part(RdmaResources)
    if isinstance(resources, Missing):
        return NotObservable(resources.missing)
    counted = [(item.device, item.counts["ctx"], item.counts) for item in resources.summaries if "ctx" in item.counts]
    if not counted:
        return NotApplicable("no device whose contexts are counted")
    many = [item for item in counted if item[1] >= _MANY]
    if not many:
        return Passed(joined(f"{device} {contexts}" for device, contexts, _ in counted))
    return Failed(
        (
            Finding(
                code=CODE,
                severity=Severity.INFO,
                subject=joined(device for device, _, _ in many),
                summary=(
                    f"{max(contexts for _, contexts, _ in many)} contexts are open on {joined(d for d, _, _ in many)}: "
                    "consistent with a library that opens every card in every process, whether it uses it or not"
                ),
                evidence=tuple(
                    Evidence(
                        name=device,
                        value=" ".join(f"{kind} {number}" for kind, number in counts.items()),
                        source="rdma resource show",
                        threshold=f"ctx below {_MANY}",
                    )
                    for device, _, counts in many[:4]
                ),
                action=f"rdma resource show ctx dev {many[0][0]} names the processes: give each its own cards",
                host=hosts.local.host,
                devices=tuple(device for device, _, _ in many),
            ),
        )
    )


CHECK = Check(code=CODE, title="no card holds contexts of everybody", run=run)
