"""ENG044: UCX has not switched GPUDirect RDMA off."""

from kvdiag.checks.base import Check, Failed, Hosts, Outcome
from kvdiag.checks.logged import logged, none_logged, times
from kvdiag.derive.gpu_memory import has_dmabuf, peermem
from kvdiag.model.finding import Finding, Severity
from kvdiag.model.kernel import Kernel
from kvdiag.model.missing import Missing

CODE = "ENG044"


def run(hosts: Hosts) -> Outcome:
    found = logged(hosts.local, "gpudirect_off")
    if not found:
        return none_logged(hosts, "GPUDirect RDMA not reported as off")
    # UCX says "GPUDirect RDMA is disabled" of peermem alone (ib_md.c), and of dma-buf on its own.
    dmabuf = {item.log.path: item for item in logged(hosts.local, "dmabuf_supported")}
    lost = tuple(item for item in found if item.log.path not in dmabuf)
    if not lost:
        return Failed(
            (
                Finding(
                    code=CODE,
                    severity=Severity.INFO,
                    subject="UCX",
                    summary="UCX found no peermem, but reports dma-buf as supported: GPU memory can be registered so",
                    evidence=(
                        found[0].evidence("peermem"),
                        dmabuf[found[0].log.path].evidence("dma-buf"),
                    ),
                    action="nothing, if transfers are fast; ucx_info -d shows the memory types that it registers",
                    host=hosts.local.host,
                ),
            )
        )
    return Failed(
        (
            Finding(
                code=CODE,
                severity=Severity.WARNING,
                subject="UCX",
                summary=(
                    f"UCX says {times(lost)} time(s) that GPUDirect RDMA is disabled: GPU memory is copied through the "
                    "host, or cannot be registered at all"
                ),
                evidence=(lost[0].evidence("first"),),
                action=_action(hosts),
                host=hosts.local.host,
            ),
        )
    )


def _action(hosts: Hosts) -> str:
    kernel = hosts.local.part(Kernel)
    loaded = kernel if isinstance(kernel, Missing) else peermem(kernel)
    again = "start the engine again, and look for the line in its new log"
    if isinstance(loaded, str):
        return f"{loaded} is loaded now: {again}; if it comes again, look whether /sys/module is seen in its container"
    if not isinstance(kernel, Missing) and has_dmabuf(kernel) is True:
        return (
            f"the kernel and its NVIDIA modules offer dma-buf: use a UCX that takes it (UCX_IB_REG_METHODS unset; "
            f"ucx_info -v 1.14 or newer), or modprobe nvidia_peermem; then {again}"
        )
    return f"modprobe nvidia_peermem, or use dma-buf (kvdiag explain GDR001); then {again}"


CHECK = Check(
    code=CODE,
    title="UCX uses GPUDirect RDMA",
    run=run,
    explains=("ENG040",),
    explained_by=("CON001", "GDR001", "GDR003"),
)
