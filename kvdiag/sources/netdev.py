"""Network interfaces as one process sees them: counters, speed, and the protocol counters of its namespace."""

from kvdiag.model.missing import Missing
from kvdiag.model.netdev import NetDevice, NetNamespace
from kvdiag.sources.base import Context
from kvdiag.sources.tree import Tree

_COLUMNS = 16


class NetDevSource:
    """The namespace of the process that the context names, or this process's own."""

    part = NetNamespace

    def read(self, context: Context) -> NetNamespace | Missing:
        return read_namespace(Tree.of(context), context.pid)


def read_namespace(tree: Tree, pid: int | None = None) -> NetNamespace | Missing:
    """Return the network namespace of a process (default: this one's), or why it cannot be seen.

    The speed comes from the /sys that the process has mounted, and only where that shows the same interfaces.
    """
    proc = "/proc" if pid is None else f"/proc/{pid}"
    text = tree.read(f"{proc}/net/dev")
    if isinstance(text, Missing):
        return text
    rows = dict(_rows(text))
    sysfs = _sysfs_of(tree, "" if pid is None else f"/proc/{pid}/root", frozenset(rows))
    protocols = _protocols(tree, proc)
    return NetNamespace(
        namespace=tree.link(f"{'/proc/self' if pid is None else proc}/ns/net"),
        devices=tuple(_device(tree, name, values, sysfs) for name, values in sorted(rows.items())),
        protocols={} if isinstance(protocols, Missing) else protocols,
        protocols_missing=protocols.missing if isinstance(protocols, Missing) else "",
    )


def _rows(text: str) -> list[tuple[str, list[int]]]:
    found = []
    for line in text.splitlines()[2:]:
        name, _, rest = line.rpartition(":")
        values = rest.split()
        if len(values) == _COLUMNS:
            found.append((name.strip(), [int(value) for value in values]))
    return found


def _sysfs_of(tree: Tree, root: str, names: frozenset[str]) -> str | Missing:
    """Return the folder /sys/class/net of a process; a /sys mounted elsewhere shows another namespace's interfaces."""
    folder = f"{root}/sys/class/net"
    listed = tree.names(folder)
    if isinstance(listed, Missing):
        return listed
    # bonding puts the file bonding_masters beside the interfaces.
    if names != frozenset(listed) - {"bonding_masters"}:
        return Missing(f"{folder} shows the interfaces of another network namespace")
    return folder


def _device(tree: Tree, name: str, values: list[int], sysfs: str | Missing) -> NetDevice:
    return NetDevice(
        name=name,
        rx_bytes=values[0],
        rx_packets=values[1],
        rx_errors=values[2],
        rx_dropped=values[3],
        tx_bytes=values[8],
        tx_packets=values[9],
        tx_errors=values[10],
        tx_dropped=values[11],
        speed_gbps=sysfs if isinstance(sysfs, Missing) else _speed(tree, f"{sysfs}/{name}/speed"),
        operstate=sysfs if isinstance(sysfs, Missing) else tree.read(f"{sysfs}/{name}/operstate"),
        link_downs=sysfs if isinstance(sysfs, Missing) else tree.number(f"{sysfs}/{name}/carrier_down_count"),
    )


def _speed(tree: Tree, path: str) -> float | Missing:
    """Return the speed that sysfs gives in 10^6 bit/s; -1 and EINVAL say that the link has none (down, loopback)."""
    mbps = tree.number(path)
    if isinstance(mbps, Missing):
        return mbps
    return Missing(f"{path} is {mbps}: the link has no speed") if mbps <= 0 else mbps / 1000


def _protocols(tree: Tree, proc: str) -> dict[str, int] | Missing:
    found: dict[str, int] = {}
    for path in (f"{proc}/net/snmp", f"{proc}/net/netstat"):
        text = tree.read(path)
        if isinstance(text, Missing):
            return text
        lines = text.splitlines()
        # Each group is two lines: "Tcp: name name …" and "Tcp: value value …".
        for names, values in zip(lines[::2], lines[1::2], strict=False):
            group = names.partition(":")[0]
            found.update(
                (f"{group}.{name}", int(value))
                for name, value in zip(names.split()[1:], values.split()[1:], strict=False)
            )
    return found


SOURCE = NetDevSource()
