"""RoCE quality of service: sysfs of NVIDIA's OFED and DOCA drivers, and `dcb` for priority flow control."""

import re

from kvdiag.model.missing import Missing
from kvdiag.model.roce_qos import DeviceTrafficClass, InterfaceQos, RoceQos
from kvdiag.sources._command import output
from kvdiag.sources.base import Context
from kvdiag.sources.rdma_sysfs import CLASS, device_names
from kvdiag.sources.tree import Tree

NET = "/sys/class/net"
_PFC = re.compile(r"prio-pfc((?:\s+[0-7]:(?:on|off))+)")


class RoceQosSource:
    """Inbox drivers have none of the sysfs files: what they hide is Missing, not off."""

    part = RoceQos

    def read(self, context: Context) -> RoceQos | Missing:
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
                found.append(_interface(context, tree, name, address))
        return RoceQos(
            interfaces=tuple(found),
            devices=tuple(
                DeviceTrafficClass(device=name, traffic_class=_traffic_class(tree, name)) for name in devices
            ),
        )


def slot(address: str) -> str:
    """Return the PCI address without the function: the ports of a card are functions of one slot."""
    return address.rpartition(".")[0]


def _interface(context: Context, tree: Tree, name: str, address: str) -> InterfaceQos:
    base = f"{NET}/{name}"
    return InterfaceQos(
        name=name,
        pci_address=address,
        trust=tree.read(f"{base}/qos/trust"),
        pfc=_pfc(context, name),
        ecn_np=_enabled(tree, f"{base}/ecn/roce_np/enable"),
        ecn_rp=_enabled(tree, f"{base}/ecn/roce_rp/enable"),
        carrier_changes=tree.number(f"{base}/carrier_changes"),
    )


def _pfc(context: Context, name: str) -> tuple[int, ...] | Missing:
    said = output(context, f"dcb-pfc-show-{name}", ("dcb", "pfc", "show", "dev", name))
    if isinstance(said, Missing):
        return said
    match = _PFC.search(said.text)
    if match is None:
        return Missing(f"{said.origin}: no line prio-pfc for {name}")
    return tuple(int(item[0]) for item in match[1].split() if item.endswith(":on"))


def _enabled(tree: Tree, folder: str) -> tuple[int, ...] | Missing:
    names = tree.names(folder)
    if isinstance(names, Missing):
        return names
    values = {int(name): tree.number(f"{folder}/{name}") for name in names if re.fullmatch("[0-7]", name)}
    for value in values.values():
        if isinstance(value, Missing):
            return value
    return tuple(priority for priority, value in sorted(values.items()) if value)


def _traffic_class(tree: Tree, device: str) -> int | Missing | None:
    """Return the class in "Global tclass=106"; None where the file is empty or says none."""
    path = f"{CLASS}/{device}/tc/1/traffic_class"
    text = tree.read(path)
    if isinstance(text, Missing):
        return text
    match = re.search(r"Global tclass=(\d{1,3})\b", text)
    return int(match[1]) if match else None


SOURCE = RoceQosSource()
