"""GDR004: the kernel could pin the pages of every memory region."""

from kvdiag.checks.base import Check, Failed, Hosts, NotApplicable, NotObservable, Outcome, Passed
from kvdiag.derive.kernel_lines import evidence, matching
from kvdiag.model.finding import Finding, Severity
from kvdiag.model.missing import Missing
from kvdiag.model.rdma import RdmaDevices

CODE = "GDR004"
_LINE = r"ib_umem_get: failed to get user pages|umem get failed"


def run(hosts: Hosts) -> Outcome:
    devices = hosts.local.part(RdmaDevices)
    if isinstance(devices, Missing):
        return NotObservable(devices.missing)
    if not devices.devices:
        return NotApplicable("no RDMA device: nothing is registered")
    lines = matching(hosts.local, _LINE)
    if isinstance(lines, Missing):
        return NotObservable(lines.missing)
    if not lines:
        return Passed("the kernel log has no line about pages that could not be pinned")
    finding = Finding(
        code=CODE,
        severity=Severity.WARNING,
        subject="memory registration",
        summary=(
            "the kernel could not pin the pages of a memory region, consistent with GPU memory that was registered "
            "without peermem, or with more of it than the GPU's PCI window holds"
        ),
        evidence=evidence(hosts.local, lines),
        action="kvdiag preflight --check GDR001 --check GDR005 --check LIM001; compare the time with the engine's log",
        host=hosts.local.host,
    )
    return Failed((finding,))


CHECK = Check(
    code=CODE, title="pages of memory regions can be pinned", run=run, explained_by=("GDR001", "GDR005", "LIM001")
)
