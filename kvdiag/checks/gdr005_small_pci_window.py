"""GDR005: the PCI window of each GPU covers its memory."""

from kvdiag.checks.base import Check, Failed, Hosts, NotApplicable, NotObservable, Outcome, Passed
from kvdiag.derive.engines import transferring
from kvdiag.derive.rdma import SOFTWARE_DRIVERS, active_ports, device_of, joined
from kvdiag.model.finding import Evidence, Finding, Severity
from kvdiag.model.gpu import AmdGpus, Gpu, NvidiaGpus
from kvdiag.model.missing import Missing, present
from kvdiag.model.pci import VENDOR_NVIDIA, PciFunctions
from kvdiag.model.pci_topology import PciTopology
from kvdiag.model.rdma import RdmaDevices
from kvdiag.model.snapshot import Snapshot

CODE = "GDR005"
_NO_KV_CACHE_BYTES = 1 << 30
"""No engine serves from a KV pool below 1 GiB; reports have registration fail beyond 200 to 500 MB at a window of
256 MiB, which is what GPUs show without resizable BAR."""


def run(hosts: Hosts) -> Outcome:
    devices = hosts.local.part(RdmaDevices)
    if isinstance(devices, Missing):
        return NotObservable(devices.missing)
    if not {device_of(devices, port).driver for port in active_ports(devices)} - SOFTWARE_DRIVERS:
        return NotApplicable("no ACTIVE port of an RDMA card")
    topology = hosts.local.part(PciTopology)
    if isinstance(topology, PciTopology) and not topology.gpus:
        return NotApplicable("no GPU on this host")
    parts = (hosts.local.part(NvidiaGpus), hosts.local.part(AmdGpus))
    known = [part for part in parts if not isinstance(part, Missing)]
    if not known:
        fitted = present(hosts.local.part(PciFunctions))
        vendors = {item.vendor for item in fitted.functions if item.base_class == 0x03} if fitted else set()
        part = parts[0] if VENDOR_NVIDIA in vendors or not fitted else parts[1]
        return NotObservable(f"the sizes of the GPUs cannot be seen: {str(part).removeprefix('not observable here: ')}")
    gpus = [gpu for part in known for gpu in part.gpus]
    sized = [(gpu, memory, window) for gpu in gpus for memory, window in _sizes(gpu)]
    small = [item for item in sized if item[2] < item[1]]
    if small:
        return Failed((_finding(small, " and ".join(part.origin for part in known), hosts.local),))
    if not gpus:
        return NotApplicable(f"{known[0].origin} lists no GPU")
    if len(sized) < len(gpus):
        hidden = next(
            size for gpu in gpus for size in (gpu.window_bytes, gpu.memory_bytes) if isinstance(size, Missing)
        )
        return NotObservable(hidden.missing)
    return Passed(f"the windows of {len(sized)} GPU(s) cover their memory, {sized[0][1] >> 20} MiB and more")


def _sizes(gpu: Gpu) -> list[tuple[int, int]]:
    memory, window = present(gpu.memory_bytes), present(gpu.window_bytes)
    return [] if memory is None or window is None else [(memory, window)]


def _finding(small: list[tuple[Gpu, int, int]], origin: str, local: Snapshot) -> Finding:
    gpu, memory, window = min(small, key=lambda item: item[2])
    setups = present(transferring(local)) or ()
    names = joined(item[0].address for item in small)
    return Finding(
        code=CODE,
        severity=Severity.CRITICAL if setups and window < _NO_KV_CACHE_BYTES else Severity.WARNING,
        subject=f"GPU {names}",
        summary=(
            f"{len(small)} GPU(s) show only {window >> 20} of {memory >> 20} MiB to RDMA cards: "
            "more cannot be registered"
        ),
        evidence=(
            Evidence(
                name=f"PCI window of {gpu.address} ({present(gpu.name) or 'GPU'})",
                value=f"{window >> 20} MiB, {_free(gpu, window)} free",
                source=origin,
                threshold=f"{memory >> 20} MiB, the GPU's memory",
            ),
            Evidence(
                name="KV connectors",
                value=joined(f"{c.name} of {item.process.name}" for item in setups for c in item.connectors)
                or "none seen",
                source="/proc/*/cmdline",
            ),
        ),
        action=(
            "enable Resizable BAR and Above 4G Decoding in the firmware (in a guest: on its host, with enough MMIO "
            f"space); then: lspci -vs {gpu.address} | grep prefetchable"
        ),
        host=local.host,
    )


def _free(gpu: Gpu, window: int) -> str:
    used = gpu.window_used_bytes
    return "unknown" if isinstance(used, Missing) else f"{(window - used) >> 20} MiB"


CHECK = Check(code=CODE, title="GPU memory is visible to PCI devices as a whole", run=run)
