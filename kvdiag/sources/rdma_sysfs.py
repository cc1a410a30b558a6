"""RDMA devices, ports and GID tables from /sys/class/infiniband."""

import errno
import ipaddress
import re

from kvdiag.model.missing import Missing, present
from kvdiag.model.rdma import Gid, Port, RdmaDevice, RdmaDevices
from kvdiag.sources.base import Context
from kvdiag.sources.tree import Tree, reason

CLASS = "/sys/class/infiniband"
_VERBS = "/sys/class/infiniband_verbs"
_PCI_ADDRESS = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_NUMBERED = re.compile(r"\d+: ?(\S.*)")
_RATE = re.compile(r"(\d+(?:\.\d+)?)\s*Gb/sec")


class RdmaSysfs:
    """Reads every attribute on its own: one that cannot be read never hides another."""

    part = RdmaDevices

    def read(self, context: Context) -> RdmaDevices | Missing:
        tree = Tree.of(context)
        names = device_names(tree)
        if isinstance(names, Missing):
            return names
        uverbs, unread = _uverbs_by_device(tree)
        return RdmaDevices(devices=tuple(_device(tree, name, uverbs) for name in names), uverbs_unread=unread)


def device_names(tree: Tree) -> tuple[str, ...] | Missing:
    """Return the RDMA devices' names; empty where the kernel has no RDMA class, Missing where /sys cannot be seen."""
    names = tree.names(CLASS)
    if isinstance(names, Missing) and not tree.exists(CLASS) and not isinstance(tree.names("/sys/class"), Missing):
        return ()
    return names


def port_numbers(tree: Tree, device: str) -> tuple[int, ...]:
    """Return the port numbers of a device, in order; empty where its folder leads nowhere."""
    names = tree.names(f"{CLASS}/{device}/ports")
    return () if isinstance(names, Missing) else tuple(sorted(int(name) for name in names if name.isdecimal()))


def _device(tree: Tree, name: str, uverbs: dict[str, str] | Missing) -> RdmaDevice:
    base = f"{CLASS}/{name}"
    address = tree.link(f"{base}/device")
    if not isinstance(address, Missing) and not _PCI_ADDRESS.fullmatch(address):
        address = Missing(f"{base}/device leads to {address}, which is no PCI function")
    numa_node = tree.number(f"{base}/device/numa_node")
    if numa_node == -1:
        numa_node = Missing(f"{base}/device/numa_node is -1: the firmware names no NUMA node")
    if isinstance(uverbs, Missing):
        node: str | Missing = uverbs
    else:
        node = uverbs.get(name, Missing(f"no /sys/class/infiniband_verbs/*/ibdev names {name}"))
    return RdmaDevice(
        name=name,
        sysfs_path=tree.resolve(base),
        driver=_driver(tree, base),
        node_type=_numbered(tree, f"{base}/node_type"),
        node_guid=tree.read(f"{base}/node_guid"),
        sys_image_guid=tree.read(f"{base}/sys_image_guid"),
        fw_ver=_not_empty(tree, f"{base}/fw_ver"),
        hca_type=_not_empty(tree, f"{base}/hca_type"),
        board_id=_not_empty(tree, f"{base}/board_id"),
        numa_node=numa_node,
        pci_address=address,
        is_vf=tree.exists(f"{base}/device/physfn"),
        uverbs=node,
        ports=tuple(_port(tree, name, number) for number in port_numbers(tree, name)),
    )


def _driver(tree: Tree, base: str) -> str | Missing:
    # Only rdma_rxe has the attribute `parent` (drivers/infiniband/sw/rxe); a device link, where rxe has one, leads to
    # the network card's driver.
    if "parent" in (present(tree.names(base)) or ()):
        return "rdma_rxe"
    return tree.link(f"{base}/device/driver")


def _port(tree: Tree, device: str, number: int) -> Port:
    base = f"{CLASS}/{device}/ports/{number}"
    rate_text = tree.read(f"{base}/rate")
    return Port(
        device=device,
        number=number,
        state=_numbered(tree, f"{base}/state"),
        phys_state=_numbered(tree, f"{base}/phys_state"),
        link_layer=_not_empty(tree, f"{base}/link_layer"),
        rate_gbps=_rate(f"{base}/rate", rate_text),
        rate_text=rate_text,
        lid=tree.number(f"{base}/lid", base=16),
        gids=_gids(tree, base),
        pkeys=_pkeys(tree, base),
    )


def _pkeys(tree: Tree, base: str) -> tuple[int, ...] | Missing:
    """Return the used slots of the table, in order; most slots of it hold 0."""
    names = tree.names(f"{base}/pkeys")
    if isinstance(names, Missing):
        return names
    keys = (tree.number(f"{base}/pkeys/{index}", base=16) for index in sorted(map(int, filter(str.isdecimal, names))))
    return tuple(dict.fromkeys(key for key in keys if not isinstance(key, Missing) and key))


def _gids(tree: Tree, base: str) -> tuple[Gid, ...] | Missing:
    """Return the used slots of the whole table: tables are sparse, so a gap ends nothing."""
    names = tree.names(f"{base}/gids")
    if isinstance(names, Missing):
        return names
    found = []
    for index in sorted(int(name) for name in names if name.isdecimal()):
        try:
            text = tree.read_text(f"{base}/gids/{index}").strip()
        except OSError as error:
            if error.errno == errno.EINVAL:  # an empty slot on some kernels
                continue
            return reason(f"{base}/gids/{index}", error)
        try:
            gid = format_gid(text)
        except ValueError:
            return Missing(f"{base}/gids/{index} holds {text[:60]!r}, not a GID")
        if gid != "::":
            kind = _not_empty(tree, f"{base}/gid_attrs/types/{index}")
            netdev = _not_empty(tree, f"{base}/gid_attrs/ndevs/{index}")
            found.append(Gid(index=index, gid=gid, type=kind, netdev=netdev))
    return tuple(found)


def format_gid(text: str) -> str:
    """Return a GID in compressed IPv6 text, an IPv4-mapped one as ::ffff:192.0.2.1; ValueError where it is none."""
    address = ipaddress.IPv6Address(text)
    # str() of a mapped address differs between Python 3.12 and 3.13.
    return f"::ffff:{address.ipv4_mapped}" if address.ipv4_mapped else str(address)


def _uverbs_by_device(tree: Tree) -> tuple[dict[str, str] | Missing, str]:
    """Return the uverbs interface of each device, and why some of them cannot be told ("" where all can)."""
    names = tree.names(_VERBS)
    if isinstance(names, Missing):
        return names, names.missing if tree.exists(_VERBS) else ""
    named = {name: _not_empty(tree, f"{_VERBS}/{name}/ibdev") for name in names if name.startswith("uverbs")}
    unread = next((device.missing for device in named.values() if isinstance(device, Missing)), "")
    return {device: name for name, device in named.items() if not isinstance(device, Missing)}, unread


def _numbered(tree: Tree, path: str) -> str | Missing:
    """Return the name in "4: ACTIVE"."""
    text = tree.read(path)
    if isinstance(text, Missing):
        return text
    match = _NUMBERED.fullmatch(text)
    return match[1] if match else Missing(f"{path} holds {text[:40]!r}, not a number and its name")


def _not_empty(tree: Tree, path: str) -> str | Missing:
    text = tree.read(path)
    return Missing(f"{path} is empty") if text == "" else text


def _rate(path: str, text: str | Missing) -> float | Missing:
    if isinstance(text, Missing):
        return text
    match = _RATE.match(text)
    return float(match[1]) if match else Missing(f"{path} holds {text[:40]!r}, not a rate in Gb/sec")


SOURCE = RdmaSysfs()
