"""Network interfaces: MTU, bond and state from /sys/class/net, addresses from /proc/net."""

import ipaddress
import re

from kvdiag.model.interfaces import NetInterface, NetInterfaces
from kvdiag.model.missing import Missing, present
from kvdiag.sources.base import Context
from kvdiag.sources.tree import Tree

_HOST_LOCAL = re.compile(r"\|-- (\d+\.\d+\.\d+\.\d+)\n\s+/32 host LOCAL")


class InterfacesSource:
    """The interfaces of the namespace that /sys and /proc/net show."""

    part = NetInterfaces

    def read(self, context: Context) -> NetInterfaces | Missing:
        tree = Tree.of(context)
        names = tree.names("/sys/class/net")
        if isinstance(names, Missing):
            return names
        addresses = _addresses(tree)
        return NetInterfaces(
            devices=tuple(
                _interface(tree, name, addresses.get(name, ()))
                for name in names
                if name != "bonding_masters"  # a file that the bonding driver puts beside the interfaces
            )
        )


def _interface(tree: Tree, name: str, addresses: tuple[str, ...]) -> NetInterface:
    base = f"/sys/class/net/{name}"
    return NetInterface(
        name=name,
        mtu=tree.number(f"{base}/mtu"),
        operstate=tree.read(f"{base}/operstate"),
        bond_slaves=tuple((present(tree.read(f"{base}/bonding/slaves")) or "").split()),
        addresses=addresses,
    )


def _addresses(tree: Tree) -> dict[str, tuple[str, ...]]:
    found: dict[str, list[str]] = {}
    for name, address in (*_ipv4(tree), *_ipv6(tree)):
        if address not in found.setdefault(name, []):
            found[name].append(address)
    return {name: tuple(addresses) for name, addresses in found.items()}


def _ipv4(tree: Tree) -> list[tuple[str, str]]:
    """Return (interface, address): fib_trie lists the host's addresses, the longest route to one its interface."""
    trie = present(tree.read("/proc/net/fib_trie")) or ""
    routes = []
    for line in (present(tree.read("/proc/net/route")) or "").splitlines()[1:]:
        fields = line.split()
        if len(fields) >= 8:
            routes.append((fields[0], _little_endian(fields[1]), _little_endian(fields[7])))
    routes.sort(key=lambda route: -route[2])
    found = []
    for text in dict.fromkeys(_HOST_LOCAL.findall(trie)):
        address = ipaddress.IPv4Address(text)
        for name, destination, mask in routes:
            if mask and int(address) & mask == destination:
                found.append((name, text))
                break
    return found


def _little_endian(text: str) -> int:
    """Return the address that /proc/net/route writes as hexadecimal in the byte order of a little-endian host."""
    try:
        return int.from_bytes(bytes.fromhex(text), "little")
    except ValueError:
        return 0


def _ipv6(tree: Tree) -> list[tuple[str, str]]:
    found = []
    for line in (present(tree.read("/proc/net/if_inet6")) or "").splitlines():
        fields = line.split()
        if len(fields) == 6 and len(fields[0]) == 32:
            try:
                found.append((fields[5], str(ipaddress.IPv6Address(bytes.fromhex(fields[0])))))
            except ValueError:
                continue
    return found


SOURCE = InterfacesSource()
