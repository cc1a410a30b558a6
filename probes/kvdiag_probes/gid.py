"""Which device, port and GID a probe uses: pure ranking over what sysfs shows."""

import ipaddress
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kvdiag.errors import UndeterminedError, UsageError
from kvdiag.model.missing import Missing
from kvdiag.model.rdma import Gid, Port, RdmaDevices


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One end's device, port and GID table slot; `gid` in compressed IPv6 text, `type` as sysfs spells it."""

    device: str
    port: int
    gid_index: int
    gid: str
    type: str
    link_layer: str

    @property
    def name(self) -> str:
        """`device/port gid-index N`, as messages name it."""
        return f"{self.device}/{self.port} gid-index {self.gid_index} ({self.gid}, {self.type})"


def choose(
    devices: RdmaDevices,
    *,
    device: str | None = None,
    port: int | None = None,
    gid_index: int | None = None,
    addresses: Sequence[str] = (),
) -> Choice:
    """Return the best slot within the given restrictions: a routable RoCE v2 GID first, then InfiniBand, then others.

    `addresses` (this end of the control connection) break ties. UsageError where a restriction names nothing;
    UndeterminedError where nothing is usable, with the state of what is there.
    """
    ports = [p for p in devices.ports if device in (None, p.device) and port in (None, p.number)]
    if not devices.devices:
        raise UndeterminedError(
            "no RDMA device on this host: load the NIC's RDMA driver, or measure over TCP (--transport tcp "
            "of bandwidth, latency, cold and kv)"
        )
    if not ports:
        names = ", ".join(p.name for p in devices.ports)
        raise UsageError(f"--device/--port: no port {device or '*'}/{port or '*'} here; there are {names}")
    active = [p for p in ports if p.state == "ACTIVE"]
    if not active:
        states = ", ".join(f"{p.name} is {p.state}" for p in ports)
        raise UndeterminedError(f"no RDMA port is ACTIVE ({states}): check cable, switch port and netdev")
    slots = [
        _choice(p, gid)
        for p in active
        for gid in ([] if isinstance(p.gids, Missing) else p.gids)
        if gid_index in (None, gid.index)
    ]
    if not slots:
        names = ", ".join(p.name for p in active)
        used = sorted({gid.index for p in active if not isinstance(p.gids, Missing) for gid in p.gids})
        if gid_index is not None and used:
            there = ", ".join(map(str, used))
            raise UsageError(f"--gid-index: {names}: no GID at index {gid_index}; there are {there}")
        raise UndeterminedError(f"{names}: no GID at all; give the netdev an IP address, see ibv_devinfo -v")
    return min(slots, key=lambda slot: (rank(slot), not _is_any(slot.gid, addresses), slot.device, slot.gid_index))


def rank(slot: Choice) -> int:
    """Return 0 for the best kind of GID: routable RoCE v2, InfiniBand, link-local RoCE v2, iWARP and others, v1."""
    if slot.link_layer == "InfiniBand":
        return 1
    if "v2" in slot.type:
        return 2 if ipaddress.IPv6Address(slot.gid).is_link_local else 0
    return 4 if "v1" in slot.type else 3


def _choice(port: Port, gid: Gid) -> Choice:
    return Choice(
        device=port.device,
        port=port.number,
        gid_index=gid.index,
        gid=gid.gid,
        type="unknown" if isinstance(gid.type, Missing) else gid.type,
        link_layer="unknown" if isinstance(port.link_layer, Missing) else port.link_layer,
    )


def _is_any(gid: str, addresses: Iterable[str]) -> bool:
    value = ipaddress.IPv6Address(gid)
    return any(ipaddress.ip_address(text.partition("%")[0]) in (value, value.ipv4_mapped) for text in addresses)
