"""Ports, cards and GIDs of a host: which carry traffic, which belong together, which reach another host."""

import ipaddress
from collections.abc import Iterable

from kvdiag.model.interfaces import NetInterfaces
from kvdiag.model.missing import Missing, present
from kvdiag.model.rdma import Gid, Port, RdmaDevice, RdmaDevices
from kvdiag.model.snapshot import Snapshot

SOFTWARE_DRIVERS = frozenset({"rdma_rxe", "siw"})
"""Drivers without hardware: no GPU memory, no offload, no path of their own."""


def attribute(port: Port, name: str) -> str:
    """Return the sysfs path of a port's attribute, as evidence names it."""
    return f"/sys/class/infiniband/{port.device}/ports/{port.number}/{name}"


def active_ports(devices: RdmaDevices) -> tuple[Port, ...]:
    """Return the ports in state ACTIVE, in order, and those whose state cannot be read: they may carry traffic, and
    what is wrong with them must not vanish with it.
    """
    return tuple(port for port in devices.ports if port.state == "ACTIVE" or isinstance(port.state, Missing))


def unread(ports: Iterable[Port], *names: str) -> Missing | None:
    """Return why the first of these attributes cannot be read of the first such port, None where all can."""
    values = (getattr(port, name) for port in ports for name in names)
    return next((value for value in values if isinstance(value, Missing)), None)


def is_roce(device: RdmaDevice, port: Port) -> bool:
    """Return whether a port speaks RoCE: Ethernet that is not iWARP (node type RNIC).

    Where its link layer cannot be read, a GID of type RoCE v2 tells.
    """
    if isinstance(port.link_layer, Missing):
        gids = () if isinstance(port.gids, Missing) else port.gids
        return any(is_v2(gid) for gid in gids)
    return port.link_layer == "Ethernet" and device.node_type != "RNIC"


def device_of(devices: RdmaDevices, port: Port) -> RdmaDevice:
    """Return the device that a port belongs to."""
    return next(device for device in devices.devices if device.name == port.device)


def card(device: RdmaDevice) -> str:
    """Return what the devices of one card share: the system image GUID, else the PCI slot, else the device's name.

    The ports of a dual-port card are two PCI functions with one system image GUID; virtual machines may zero it.
    """
    guid = device.sys_image_guid
    if isinstance(guid, str) and guid.strip("0:"):
        return guid
    address = device.pci_address
    return device.name if isinstance(address, Missing) else address.rpartition(".")[0]


def one_card(one: RdmaDevice, other: RdmaDevice) -> bool:
    """Return whether two devices are of one card: where a GUID is hidden, functions of one PCI slot are."""
    if card(one) == card(other):
        return True
    first, second = one.pci_address, other.pci_address
    return isinstance(first, str) and isinstance(second, str) and first.rpartition(".")[0] == second.rpartition(".")[0]


def model(device: RdmaDevice) -> tuple[str, ...]:
    """Return what cards of one make share: the board id with the card type, else the driver."""
    known = tuple(value for value in (device.hca_type, device.board_id) if isinstance(value, str))
    if known:
        return known
    return () if isinstance(device.driver, Missing) else (device.driver,)


def half_known(devices: Iterable[RdmaDevice]) -> Missing | None:
    """Return why the make of one of these devices is hidden: of card type and board id it shows one, and shares that
    with a card that shows both. None where no make is.
    """
    listed = tuple(devices)
    whole = {value for device in listed if len(model(device)) == 2 for value in model(device)}
    for device in listed:
        for shown, hidden in ((device.hca_type, device.board_id), (device.board_id, device.hca_type)):
            if isinstance(shown, str) and isinstance(hidden, Missing) and shown in whole:
                return hidden
    return None


def is_v2(gid: Gid) -> bool:
    return isinstance(gid.type, str) and "v2" in gid.type


def is_link_local(gid: Gid) -> bool:
    return ipaddress.IPv6Address(gid.gid).is_link_local


def routable_v2(port: Port) -> tuple[Gid, ...]:
    """Return the RoCE v2 GIDs that other subnets can answer, IPv4-mapped ones first, then by index."""
    gids = () if isinstance(port.gids, Missing) else port.gids
    found = [gid for gid in gids if is_v2(gid) and not is_link_local(gid)]
    return tuple(sorted(found, key=lambda gid: (ipaddress.IPv6Address(gid.gid).ipv4_mapped is None, gid.index)))


def netdev_of(port: Port) -> str | None:
    """Return the network interface that a port's GIDs name, None where none does."""
    return next((gid.netdev for gid in present(port.gids) or () if isinstance(gid.netdev, str)), None)


def is_bond(snapshot: Snapshot, port: Port) -> bool:
    """Return whether a port is a bond: its rate then is that of its links together."""
    interfaces = present(snapshot.part(NetInterfaces))
    found = (interfaces.named(gid.netdev) for gid in present(port.gids) or ()) if interfaces else ()
    return any(interface is not None and interface.bond_slaves for interface in found)


def joined(names: Iterable[str], most: int = 8) -> str:
    """Return names as one list for a message, cut after `most`."""
    listed = list(names)
    tail = [f"… {len(listed) - most} more"] if len(listed) > most else []
    return ", ".join(listed[:most] + tail)
