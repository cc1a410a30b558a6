"""Which ports of a host would talk with a peer, and their RoCE v2 GIDs."""

from collections.abc import Iterable

from kvdiag.derive.environments import environments
from kvdiag.derive.rdma import active_ports, device_of, is_link_local, is_roce, is_v2
from kvdiag.model.missing import Missing, present
from kvdiag.model.rdma import Gid, Port, RdmaDevices
from kvdiag.model.snapshot import Snapshot


def used_ports(snapshot: Snapshot) -> tuple[Port, ...] | Missing:
    """Return the ACTIVE ports that a transport in use may take."""
    devices = snapshot.part(RdmaDevices)
    if isinstance(devices, Missing):
        return devices
    named = present(environments(snapshot)) or ()
    return tuple(port for port in active_ports(devices) if not named or any(item.lets_use(port) for item in named))


def roce_ports(snapshot: Snapshot, ports: Iterable[Port]) -> tuple[Port, ...]:
    """Return those of the ports that speak RoCE and show their GIDs."""
    devices = snapshot.part(RdmaDevices)
    if isinstance(devices, Missing):
        return ()
    return tuple(
        port for port in ports if is_roce(device_of(devices, port), port) and not isinstance(port.gids, Missing)
    )


def v2_gids(port: Port, *, link_local: bool) -> tuple[Gid, ...]:
    """Return the RoCE v2 GIDs of a port, those of its links only or the others."""
    return tuple(gid for gid in present(port.gids) or () if is_v2(gid) and is_link_local(gid) is link_local)
