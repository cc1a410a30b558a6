"""RDMA cards and GPUs that share a PCI switch: their traffic need not pass the CPU's root port."""

from dataclasses import dataclass

from kvdiag.derive.gpu_distance import Distance, between
from kvdiag.derive.rdma import SOFTWARE_DRIVERS, active_ports, device_of
from kvdiag.model.missing import Missing
from kvdiag.model.pci_topology import PciPlace, PciTopology
from kvdiag.model.rdma import RdmaDevice, RdmaDevices
from kvdiag.model.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class Pair:
    """An RDMA device with an ACTIVE port, a GPU, and how far they are from each other."""

    device: RdmaDevice
    nic: PciPlace
    gpu: PciPlace
    distance: Distance | Missing

    @property
    def is_switched(self) -> bool:
        """Whether the two share a PCI switch."""
        return isinstance(self.distance, Distance) and self.distance.is_switched


def pairs(snapshot: Snapshot) -> tuple[Pair, ...] | Missing:
    """Return every pair of an RDMA card with an ACTIVE port and a GPU, in the order of devices and addresses."""
    devices = snapshot.part(RdmaDevices)
    topology = snapshot.part(PciTopology)
    if isinstance(devices, Missing):
        return devices
    if isinstance(topology, Missing):
        return topology
    if topology.unreadable:
        return Missing(topology.unreadable)
    if not topology.gpus:
        return ()
    active = dict.fromkeys(device_of(devices, port).name for port in active_ports(devices))
    cards = [d for d in devices.devices if d.name in active and d.driver not in SOFTWARE_DRIVERS]
    found = []
    for device in cards:
        if isinstance(device.pci_address, Missing):
            return device.pci_address
        nic = topology.at(device.pci_address)
        if nic is None:
            return Missing(f"/sys/bus/pci/devices does not show {device.pci_address}, which is {device.name}")
        found += [Pair(device, nic, gpu, between(nic, gpu)) for gpu in topology.gpus]
    return tuple(found)


def below_shared(pair: Pair) -> tuple[str, ...]:
    """Return the addresses of the bridges between the two, below the one that they share."""
    shared = sum(1 for one, other in zip(pair.nic.path, pair.gpu.path, strict=False) if one == other)
    return (*pair.nic.path[shared:-1], *pair.gpu.path[shared:-1])


def none_switched(found: tuple[Pair, ...]) -> str:
    """Return why nothing is judged where no pair shares a switch."""
    if not found:
        return "no pair of a GPU and an RDMA card with an ACTIVE port"
    return f"none of {len(found)} pair(s) of GPU and RDMA card shares a PCI switch"
