"""GDR001: RDMA devices can reach the memory of NVIDIA GPUs, by peermem or by dma-buf."""

import re

from kvdiag.checks.base import Check, Failed, Hosts, NotApplicable, NotObservable, Outcome, Passed
from kvdiag.derive.rdma import SOFTWARE_DRIVERS, active_ports, device_of
from kvdiag.model.finding import Evidence, Finding, Severity
from kvdiag.model.kernel import Kernel
from kvdiag.model.missing import Missing, present
from kvdiag.model.pci import VENDOR_NVIDIA, PciFunctions
from kvdiag.model.rdma import RdmaDevices

CODE = "GDR001"
_PEERMEM = ("nvidia_peermem", "nv_peer_mem")
_DMABUF_KERNEL = (5, 12)
"""ib_umem_dmabuf_get came with Linux 5.12; only the open NVIDIA modules export GPU memory as a dma-buf."""


def run(hosts: Hosts) -> Outcome:
    devices = hosts.local.part(RdmaDevices)
    if isinstance(devices, Missing):
        return NotObservable(devices.missing)
    drivers = {device_of(devices, port).driver for port in active_ports(devices)}
    # EFA reaches GPU memory through its own driver; software devices never do.
    if not drivers - SOFTWARE_DRIVERS - {"efa"}:
        return NotApplicable("no ACTIVE port of an RDMA card that would use peermem or dma-buf")
    functions = hosts.local.part(PciFunctions)
    kernel = hosts.local.part(Kernel)
    if isinstance(functions, Missing):
        return NotObservable(functions.missing)
    if isinstance(kernel, Missing):
        return NotObservable(kernel.missing)
    gpus = [f for f in functions.functions if f.vendor == VENDOR_NVIDIA and f.base_class == 0x03 and not f.given_away]
    if not gpus:
        return NotApplicable("no NVIDIA GPU on this host")
    if isinstance(kernel.nvidia_version, Missing):
        return NotApplicable("the NVIDIA driver is not loaded, so no engine uses these GPUs")
    if isinstance(kernel.modules, Missing):
        return NotObservable(kernel.modules.missing)
    loaded = [name for name in _PEERMEM if name in kernel.modules]
    if loaded:
        return Passed(f"{loaded[0]} is loaded")
    is_open = "Open Kernel Module" in kernel.nvidia_version
    version = _release(kernel.release)
    if is_open and version is None:
        return NotObservable(f"kernel release: {kernel.release}")
    if is_open and version is not None and version >= _DMABUF_KERNEL:
        return Passed(f"dma-buf: open NVIDIA kernel modules on Linux {present(kernel.release)}")
    evidence = (
        Evidence(name="peermem module", value="not loaded", source="/proc/modules", threshold="nvidia_peermem"),
        Evidence(
            name="NVIDIA kernel modules",
            value="open" if is_open else "proprietary",
            source="/proc/driver/nvidia/version",
            threshold="open, for dma-buf",
        ),
        Evidence(
            name="kernel",
            value=str(kernel.release),
            source="/proc/sys/kernel/osrelease",
            threshold="5.12 or newer, for dma-buf",
        ),
        Evidence(name="NVIDIA GPUs", value=str(len(gpus)), source="/sys/bus/pci/devices/*/vendor"),
    )
    finding = Finding(
        code=CODE,
        severity=Severity.CRITICAL,
        subject=f"{len(gpus)} NVIDIA GPU(s)",
        summary="RDMA cards cannot reach GPU memory: neither peermem nor dma-buf is available",
        evidence=evidence,
        action="modprobe nvidia_peermem (for good: echo nvidia_peermem > /etc/modules-load.d/nvidia-peermem.conf)",
        host=hosts.local.host,
    )
    return Failed((finding,))


def _release(text: str | Missing) -> tuple[int, int] | None:
    match = None if isinstance(text, Missing) else re.match(r"(\d+)\.(\d+)", text)
    return (int(match[1]), int(match[2])) if match else None


CHECK = Check(code=CODE, title="RDMA cards can reach GPU memory", run=run)
