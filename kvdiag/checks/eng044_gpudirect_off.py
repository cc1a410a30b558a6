"""ENG044: UCX has not switched GPUDirect RDMA off."""

from kvdiag.checks.base import Check, Failed, Hosts, Outcome
from kvdiag.checks.logged import logged, none_logged, times
from kvdiag.model.finding import Finding, Severity

CODE = "ENG044"


def run(hosts: Hosts) -> Outcome:
    found = logged(hosts.local, "gpudirect_off")
    if not found:
        return none_logged(hosts, "GPUDirect RDMA not reported as off")
    return Failed(
        (
            Finding(
                code=CODE,
                severity=Severity.WARNING,
                subject="UCX",
                summary=(
                    f"UCX says {times(found)} time(s) that GPUDirect RDMA is disabled: GPU memory is copied "
                    "through the "
                    "host, or cannot be registered at all"
                ),
                evidence=(found[0].evidence("first"),),
                action="modprobe nvidia_peermem, or use dma-buf (kvdiag explain GDR001); then start the engine again",
                host=hosts.local.host,
            ),
        )
    )


CHECK = Check(
    code=CODE,
    title="UCX uses GPUDirect RDMA",
    run=run,
    explains=("ENG040",),
    explained_by=("CON001", "GDR001", "GDR003"),
)
