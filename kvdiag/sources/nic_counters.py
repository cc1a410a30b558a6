"""Flow-control, loss and link counters of the interfaces behind RDMA devices, as `ethtool -S` lists them."""

import re

from kvdiag.model.missing import Missing
from kvdiag.model.nic_counters import AllNicCounters, NicCounters
from kvdiag.sources._command import output
from kvdiag.sources._ethtool import statistics
from kvdiag.sources.base import Context
from kvdiag.sources.rdma_sysfs import CLASS, device_names
from kvdiag.sources.roce_qos import NET, slot
from kvdiag.sources.tree import Tree

_WANTED = re.compile(
    r"pause|pfc|xo(n|ff)|prio\d+_(bytes|packets|discards|buf_discard)|discard|link_down|crc|symbol_err"
    r"|out_of_buffer|signal_integrity|outbound_pci_stalled|allowance_exceeded|vport_rdma"
)
_SHOWN = re.compile(r"^NIC statistics:|no stats available", re.MULTILINE)
_LINE = re.compile(r"^\s*([\w.\[\] -]+): (\d{1,20})$", re.MULTILINE)


class NicCountersSource:
    """Asks the kernel when live; a copied tree keeps `ethtool -S IFACE` in `commands/ethtool-S-IFACE.txt`."""

    part = AllNicCounters

    def read(self, context: Context) -> AllNicCounters | Missing:
        tree = Tree.of(context)
        devices = device_names(tree)
        names = tree.names(NET)
        if isinstance(devices, Missing):
            return devices
        if isinstance(names, Missing):
            return names
        cards = {slot(address) for name in devices if isinstance(address := tree.link(f"{CLASS}/{name}/device"), str)}
        found = []
        for name in names:
            address = tree.link(f"{NET}/{name}/device")
            if isinstance(address, str) and slot(address) in cards:
                found.append(_counters(context, name, address))
        return AllNicCounters(interfaces=tuple(found))


def _counters(context: Context, name: str, address: str) -> NicCounters:
    read, unreadable = {}, ""
    if context.live:
        try:
            read = statistics(name)
        except OSError as error:
            unreadable = f"ethtool -S {name}: {error.strerror or error}"
    else:
        said = output(context, f"ethtool-S-{name}", ("ethtool", "-S"), _SHOWN)
        if isinstance(said, Missing):
            unreadable = said.missing
        else:
            read = {key.strip(): int(value) for key, value in _LINE.findall(said.text)}
    kept = {key: value for key, value in sorted(read.items()) if _WANTED.search(key)}
    return NicCounters(name=name, pci_address=address, counters=kept, unreadable=unreadable)


SOURCE = NicCountersSource()
