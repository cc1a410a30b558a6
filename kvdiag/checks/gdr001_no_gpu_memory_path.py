"""GDR001: RDMA devices can reach the memory of NVIDIA GPUs, by peermem or by dma-buf."""

from kvdiag.checks.base import Check, Failed, Hosts, NotApplicable, NotObservable, Outcome, Passed
from kvdiag.derive.gpu_memory import has_dmabuf, has_open_modules, peermem
from kvdiag.derive.rdma import SOFTWARE_DRIVERS, active_ports, device_of
from kvdiag.model.finding import Evidence, Finding, Severity
from kvdiag.model.kernel import Kernel
from kvdiag.model.missing import Missing, present
from kvdiag.model.pci import VENDOR_NVIDIA, PciFunctions
from kvdiag.model.rdma import RdmaDevices

CODE = "GDR001"


def run(hosts: Hosts) -> Outcome:
    devices = hosts.local.part(RdmaDevices)
    if isinstance(devices, Missing):
        return NotObservable(devices.missing)
    drivers = {device_of(devices, port).driver for port in active_ports(devices)}
    if not drivers - SOFTWARE_DRIVERS:
        return NotApplicable("no ACTIVE port of an RDMA card")
    if drivers - SOFTWARE_DRIVERS == {"efa"}:
        return NotApplicable("EFA cards reach GPU memory through their own driver")
    functions = hosts.local.part(PciFunctions)
    kernel = hosts.local.part(Kernel)
    if isinstance(functions, Missing):
        return NotObservable(functions.missing)
    if isinstance(kernel, Missing):
        return NotObservable(kernel.missing)
    gpus = [f for f in functions.functions if f.vendor == VENDOR_NVIDIA and f.base_class == 0x03 and not f.given_away]
    if not gpus and functions.unread:
        return NotObservable(functions.unread)
    if not gpus:
        return NotApplicable("no NVIDIA GPU on this host")
    if isinstance(kernel.nvidia_version, Missing):
        if not kernel.nvidia_version.missing.endswith("does not exist"):
            return NotObservable(kernel.nvidia_version.missing)
        return NotApplicable("the NVIDIA driver is not loaded, so no engine uses these GPUs")
    loaded = peermem(kernel)
    if isinstance(loaded, Missing):
        return NotObservable(loaded.missing)
    if loaded:
        return Passed(f"{loaded} is loaded")
    dmabuf = has_dmabuf(kernel)
    if isinstance(dmabuf, Missing):
        return NotObservable(dmabuf.missing)
    if dmabuf:
        return Passed(f"dma-buf: open NVIDIA kernel modules on Linux {present(kernel.release)}")
    evidence = (
        Evidence(name="peermem module", value="not loaded", source="/proc/modules", threshold="nvidia_peermem"),
        Evidence(
            name="NVIDIA kernel modules",
            value="open" if has_open_modules(kernel) is True else "proprietary",
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


CHECK = Check(code=CODE, title="RDMA cards can reach GPU memory", run=run)
