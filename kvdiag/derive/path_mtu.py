"""The active MTU of RDMA ports: as libibverbs tells it, or as the kernel derives it from the interface."""

from dataclasses import dataclass

from kvdiag.derive.rdma import attribute
from kvdiag.model.interfaces import NetInterfaces
from kvdiag.model.missing import Missing, present
from kvdiag.model.rdma import Port
from kvdiag.model.snapshot import Snapshot
from kvdiag.model.verbs import VerbsDevices

# Headers that the kernel reserves for RoCE: GRH 40, UDP 8, BTH 12, XRC 4, atomic 28, ICRC 4
# (iboe_get_mtu in include/rdma/ib_addr.h).
_HEADERS_BYTES = 96
_STEPS = (4096, 2048, 1024, 512, 256)


@dataclass(frozen=True, slots=True)
class PathMtu:
    """`bytes` with the place that shows it."""

    bytes: int
    source: str


def rdma_mtu(interface_mtu: int) -> int:
    """Return the RoCE MTU (bytes) that the kernel gives a port whose interface has this MTU (bytes); 0 below 352."""
    return next((step for step in _STEPS if step <= interface_mtu - _HEADERS_BYTES), 0)


def active_mtu(snapshot: Snapshot, port: Port) -> PathMtu | Missing:
    """Return a port's active MTU, from libibverbs first, then from its interface's MTU."""
    verbs = snapshot.part(VerbsDevices)
    if not isinstance(verbs, Missing):
        told = verbs.active_mtu(port.device, port.number)
        if not isinstance(told, Missing):
            return PathMtu(told, f"{verbs.origin}, active_mtu of {port.name}")
    interfaces = snapshot.part(NetInterfaces)
    if isinstance(interfaces, Missing):
        return interfaces
    for gid in present(port.gids) or ():
        interface = interfaces.named(gid.netdev)
        if interface is not None and not isinstance(interface.mtu, Missing) and rdma_mtu(interface.mtu):
            return PathMtu(rdma_mtu(interface.mtu), f"/sys/class/net/{interface.name}/mtu is {interface.mtu}")
    return Missing(f"neither libibverbs nor an interface behind {attribute(port, 'gid_attrs/ndevs')} shows it")
