"""How far RDMA devices are from GPUs, in the terms of `nvidia-smi topo -m`."""

from enum import IntEnum

from kvdiag.model.missing import Missing
from kvdiag.model.pci_topology import PciPlace, PciTopology
from kvdiag.model.rdma import RdmaDevice


class Distance(IntEnum):
    """Near to far, as the legend of `nvidia-smi topo -m` defines them.

    PIX at most one switch between the two, PXB several, PHB their host bridge, NODE host bridges of one NUMA node, SYS
    the interconnect between NUMA nodes.
    """

    PIX = 1
    PXB = 2
    PHB = 3
    NODE = 4
    SYS = 5

    @property
    def is_switched(self) -> bool:
        """Whether traffic between the two can stay below the CPU's root port."""
        return self <= Distance.PXB


def between(one: PciPlace, other: PciPlace) -> Distance | Missing:
    """Return the distance of two PCI functions, or Missing where the NUMA nodes that decide it are not known."""
    shared = 0
    for here, there in zip(one.path, other.path, strict=False):
        if here != there:
            break
        shared += 1
    if shared >= 2:  # the root bus and at least one bridge
        # Below a shared switch the way is: device, downstream port, upstream port, downstream port, device.
        beyond = max(len(one.path), len(other.path)) - shared
        return Distance.PIX if beyond <= 2 else Distance.PXB
    if shared == 1:
        return Distance.PHB
    if isinstance(one.numa_node, Missing):
        return one.numa_node
    if isinstance(other.numa_node, Missing):
        return other.numa_node
    return Distance.NODE if one.numa_node == other.numa_node else Distance.SYS


def nearest_gpu(topology: PciTopology, device: RdmaDevice) -> tuple[PciPlace, Distance] | None:
    """Return the GPU nearest to an RDMA device, or None where no distance is known."""
    place = topology.at(device.pci_address)
    if place is None:
        return None
    known = [
        (distance, gpu.address, gpu)
        for gpu in topology.gpus
        if not isinstance(distance := between(place, gpu), Missing)
    ]
    if not known:
        return None
    distance, _, gpu = min(known, key=lambda item: item[:2])
    return gpu, distance
