"""The places of network cards and GPUs in the PCI tree, from where the links of /sys/bus/pci/devices lead."""

import re

from kvdiag.model.missing import Missing
from kvdiag.model.pci_topology import PciPlace, PciTopology
from kvdiag.sources.base import Context
from kvdiag.sources.tree import Tree

FOLDER = "/sys/bus/pci/devices"
# Base classes of the PCI code assignments: network, display, processing accelerator.
_CLASSES = (0x02, 0x03, 0x12)
_STEP = re.compile(r"pci[0-9a-f]{4,}:[0-9a-f]{2}|[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")


class PciTopologySource:
    """Missing where the links lead nowhere, as in a container without /sys/devices."""

    part = PciTopology

    def read(self, context: Context) -> PciTopology | Missing:
        tree = Tree.of(context)
        names = tree.names(FOLDER)
        if isinstance(names, Missing):
            return names
        places = []
        unresolved = None
        for name in names:
            place = _place(tree, name)
            if isinstance(place, PciPlace):
                places.append(place)
            elif place is not None:
                unresolved = place
        if not places and unresolved is not None:
            return unresolved
        return PciTopology(places=tuple(places), unreadable="" if unresolved is None else unresolved.missing)


def _place(tree: Tree, address: str) -> PciPlace | Missing | None:
    """Return a function's place, why it cannot be told, or None where it is of no interest."""
    base = f"{FOLDER}/{address}"
    class_code = tree.number(f"{base}/class", base=16)
    vendor = tree.number(f"{base}/vendor", base=16)
    if isinstance(class_code, Missing):
        return class_code
    if isinstance(vendor, Missing):
        return vendor
    if class_code >> 16 not in _CLASSES:
        return None
    resolved = tree.resolve(base)
    if isinstance(resolved, Missing):
        return resolved
    # Some platforms put a controller between /sys/devices and the root bus (Hyper-V, PCI domains of VMD).
    steps = resolved.split("/")
    first = next((number for number, step in enumerate(steps) if step.startswith("pci")), None)
    path = tuple(step for step in steps[first:] if _STEP.fullmatch(step)) if first is not None else ()
    if not path:
        return Missing(f"{base} leads to {resolved}, which is below no PCI root bus")
    numa_node = tree.number(f"{base}/numa_node")
    if numa_node == -1:
        numa_node = Missing(f"{base}/numa_node is -1: the firmware names no NUMA node")
    return PciPlace(address=address, vendor=vendor, class_code=class_code, path=path, numa_node=numa_node)


SOURCE = PciTopologySource()
