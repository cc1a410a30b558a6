"""Which RoCE port can reach which port of a peer, as addresses and routes of this host say."""

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass

from kvdiag.derive.environments import environments
from kvdiag.derive.gid_index import roce_ports
from kvdiag.derive.rdma import routable_v2
from kvdiag.model.missing import Missing, present
from kvdiag.model.rdma import Port, RdmaDevices
from kvdiag.model.routing import Route, Routing
from kvdiag.model.snapshot import Snapshot

IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address


@dataclass(frozen=True, slots=True)
class Rail:
    """A RoCE port with the IP addresses in its RoCE v2 GIDs and the interface behind them."""

    port: Port
    interface: str
    addresses: tuple[IpAddress, ...]


def rails(snapshot: Snapshot) -> tuple[Rail, ...] | Missing:
    """Return the ACTIVE RoCE ports that the environment lets be used and that have a routable address.

    Missing where one of them hides its GIDs, as in another network namespace.
    """
    devices = snapshot.part(RdmaDevices)
    if isinstance(devices, Missing):
        return devices
    named = present(environments(snapshot)) or ()
    found = []
    for port in roce_ports(devices):
        if named and not any(item.lets_use(port) for item in named):
            continue
        if isinstance(port.gids, Missing):
            return port.gids
        gids = routable_v2(port)
        hidden = [value for gid in gids or port.gids for value in (gid.type, gid.netdev) if isinstance(value, Missing)]
        interface = next((gid.netdev for gid in gids if isinstance(gid.netdev, str)), None)
        if interface is not None:
            found.append(Rail(port, interface, tuple(dict.fromkeys(address(gid.gid) for gid in gids))))
        elif hidden:
            return hidden[0]
    return tuple(found)


def address(gid: str) -> IpAddress:
    """Return the IP address that a RoCE v2 GID stands for."""
    full = ipaddress.IPv6Address(gid)
    return full.ipv4_mapped or full


def connected(routing: Routing, interface: str) -> tuple[str, ...]:
    """Return the networks that an interface is directly in, link-local ones left out."""
    routes = present(routing.routes) or ()
    return tuple(
        dict.fromkeys(
            route.network
            for route in routes
            if route.interface == interface and not route.gateway and not _is_link_local(route.network)
        )
    )


def leads_to(routes: Sequence[Route], interface: str, target: IpAddress) -> bool:
    """Return whether a route of the main table leads to an address through this interface.

    RDMA's address resolution only takes routes of the GID's own interface (addr_resolve in
    drivers/infiniband/core/addr.c).
    """
    return any(
        route.interface == interface and target in network
        for route in routes
        if (network := _network(route.network)) is not None and network.version == target.version
    )


def _network(text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network | None:
    try:
        return ipaddress.ip_network(text)
    except ValueError:
        return None


def _is_link_local(text: str) -> bool:
    network = _network(text)
    return network is None or network.is_link_local


@dataclass(frozen=True, slots=True)
class Reach:
    """A port of this host, and for each port of the peer whether a route through it leads there."""

    rail: Rail
    peers: tuple[tuple[Rail, bool], ...]


def reach(local: Snapshot, peer: Snapshot) -> tuple[Reach, ...] | Missing:
    """Return what each RoCE port here reaches of the peer's; Missing where policy routing decides it."""
    ours, theirs, routing = rails(local), rails(peer), local.part(Routing)
    if isinstance(ours, Missing):
        return ours
    if isinstance(theirs, Missing):
        return theirs
    if isinstance(routing, Missing):
        return routing
    if isinstance(routing.routes, Missing):
        return routing.routes
    rules = present(routing.source_rules) or ()
    if rules:
        return Missing(f"{len(rules)} rule(s) choose routes by source address: their tables are not read")
    routes = routing.routes
    return tuple(
        Reach(
            rail,
            tuple((far, any(leads_to(routes, rail.interface, target) for target in far.addresses)) for far in theirs),
        )
        for rail in ours
    )
