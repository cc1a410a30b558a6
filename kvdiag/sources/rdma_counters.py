"""Port counters from /sys/class/infiniband/DEVICE/ports/N/{counters,hw_counters}, raw and each on its own."""

from kvdiag.model.missing import Missing
from kvdiag.model.rdma import PortCounters, RdmaCounters
from kvdiag.sources.base import Context
from kvdiag.sources.rdma_sysfs import CLASS, device_names, port_numbers
from kvdiag.sources.tree import Tree

FOLDERS = ("counters", "hw_counters")


class RdmaCountersSource:
    """Reads files only: the kernel's statistics are never switched, set or bound."""

    part = RdmaCounters

    def read(self, context: Context) -> RdmaCounters | Missing:
        tree = Tree.of(context)
        names = device_names(tree)
        if isinstance(names, Missing):
            return names
        return RdmaCounters(
            ports=tuple(_port(tree, device, number) for device in names for number in port_numbers(tree, device))
        )


def _port(tree: Tree, device: str, number: int) -> PortCounters:
    values: dict[str, dict[str, int]] = {folder: {} for folder in FOLDERS}
    unreadable = {}
    for folder in FOLDERS:
        base = f"{CLASS}/{device}/ports/{number}/{folder}"
        names = tree.names(base)
        if isinstance(names, Missing):
            unreadable[folder] = names.missing
            continue
        for name in names:
            value = tree.number(f"{base}/{name}")
            if isinstance(value, Missing):
                unreadable[f"{folder}/{name}"] = value.missing
            else:
                values[folder][name] = value
    return PortCounters(
        device=device,
        port=number,
        counters=values["counters"],
        hw_counters=values["hw_counters"],
        unreadable=unreadable,
    )


SOURCE = RdmaCountersSource()
