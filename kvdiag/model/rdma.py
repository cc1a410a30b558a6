"""RDMA devices, ports, GIDs and counters as sysfs shows them."""

from dataclasses import dataclass

from kvdiag.model.missing import Missing


@dataclass(frozen=True, slots=True, kw_only=True)
class Gid:
    """One used slot of a port's GID table; `gid` in compressed IPv6 text (IPv4-mapped: ::ffff:192.0.2.1), `netdev` the
    interface behind it.
    """

    index: int
    gid: str
    type: str | Missing
    netdev: str | Missing


@dataclass(frozen=True, slots=True, kw_only=True)
class Port:
    """`state` and `phys_state` without their number ("ACTIVE", "LinkUp"); `rate_gbps` in 10^9 bit/s; `pkeys` the used
    P_Keys in order, with the membership bit 0x8000.
    """

    device: str
    number: int
    state: str | Missing
    phys_state: str | Missing
    link_layer: str | Missing
    rate_gbps: float | Missing
    rate_text: str | Missing
    lid: int | Missing
    gids: tuple[Gid, ...] | Missing
    pkeys: tuple[int, ...] | Missing

    @property
    def name(self) -> str:
        """`device/port`, as every message names a port."""
        return f"{self.device}/{self.number}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RdmaDevice:
    """`driver` is the kernel driver behind the device link (never guessed from the name); `uverbs` the node's name.

    `sysfs_path` is where the class link leads; Missing where its target is absent, as in a container without
    /sys/devices: then every other attribute is Missing too and there are no ports.
    """

    name: str
    sysfs_path: str | Missing
    driver: str | Missing
    node_type: str | Missing
    node_guid: str | Missing
    sys_image_guid: str | Missing
    fw_ver: str | Missing
    hca_type: str | Missing
    board_id: str | Missing
    numa_node: int | Missing
    pci_address: str | Missing
    is_vf: bool
    uverbs: str | Missing
    ports: tuple[Port, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RdmaDevices:
    """Every device of /sys/class/infiniband, sorted by name; empty where the kernel has no RDMA device or no such
    class, Missing where sysfs itself cannot be seen. `uverbs_unread` says why the uverbs interface of some device
    cannot be told, "" where that of each can.
    """

    devices: tuple[RdmaDevice, ...]
    uverbs_unread: str = ""

    @property
    def ports(self) -> tuple[Port, ...]:
        """Every port of every device, in order."""
        return tuple(port for device in self.devices for port in device.ports)


@dataclass(frozen=True, slots=True, kw_only=True)
class PortCounters:
    """Raw values by file name: `counters` (PMA; *_data in 4-byte words) and `hw_counters` (driver's own names).

    `unreadable` holds, by `counters/NAME` or `hw_counters/NAME`, why a present file gave no number, and by `counters`
    or `hw_counters` why the whole folder could not be listed (rdma_rxe and EFA have no `counters`).
    """

    device: str
    port: int
    counters: dict[str, int]
    hw_counters: dict[str, int]
    unreadable: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class RdmaCounters:
    ports: tuple[PortCounters, ...]
