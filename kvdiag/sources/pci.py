"""PCI functions from /sys/bus/pci/devices."""

from kvdiag.model.missing import Missing
from kvdiag.model.pci import PciFunction, PciFunctions
from kvdiag.sources.base import Context
from kvdiag.sources.tree import Tree

FOLDER = "/sys/bus/pci/devices"


class PciSource:
    """Identity and driver of every function; one whose identity cannot be read is left out, and the reason kept."""

    part = PciFunctions

    def read(self, context: Context) -> PciFunctions | Missing:
        tree = Tree.of(context)
        names = tree.names(FOLDER)
        if isinstance(names, Missing):
            return names
        found = [_function(tree, name) for name in names]
        return PciFunctions(
            functions=tuple(function for function in found if isinstance(function, PciFunction)),
            unread=next((function.missing for function in found if isinstance(function, Missing)), ""),
        )


def _function(tree: Tree, address: str) -> PciFunction | Missing:
    base = f"{FOLDER}/{address}"
    vendor, device, class_code = (tree.number(f"{base}/{name}", base=16) for name in ("vendor", "device", "class"))
    if isinstance(vendor, Missing):
        return vendor
    if isinstance(device, Missing):
        return device
    if isinstance(class_code, Missing):
        return class_code
    return PciFunction(
        address=address,
        vendor=vendor,
        device=device,
        class_code=class_code,
        driver=tree.link(f"{base}/driver"),
    )


SOURCE = PciSource()
