"""Addresses at which a host can, or cannot, be reached."""

import ipaddress

from kvdiag.model.interfaces import NetInterfaces
from kvdiag.model.missing import present
from kvdiag.model.routing import Routing
from kvdiag.model.snapshot import Snapshot


def is_local_only(host: str) -> bool:
    """Return whether a host name or address leads every other host to itself."""
    if host.lower() in ("localhost", "localhost.localdomain"):
        return True
    try:
        address = ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return False
    return address.is_loopback or address.is_unspecified


def address_of(snapshot: Snapshot) -> str:
    """Return this host's first global address, IPv4 before IPv6, of an interface that is up.

    It is of the interface that the default route leaves by, where there is one: side channels belong on the network of
    the hosts and not on a RoCE port.
    """
    routing = present(snapshot.part(Routing))
    routes = present(routing.routes) or () if routing else ()
    default = {route.interface for route in routes if route.network in ("0.0.0.0/0", "::/0")}
    interfaces = present(snapshot.part(NetInterfaces))
    addresses = [
        (interface.name, ipaddress.ip_address(text))
        for interface in (interfaces.devices if interfaces else ())
        if interface.operstate == "up"
        for text in interface.addresses
    ]
    usable = [item for item in addresses if not item[1].is_loopback and not item[1].is_link_local]
    best = min(usable, key=lambda item: (item[0] not in default, item[1].version), default=None)
    return str(best[1]) if best else f"ADDRESS-OF-{snapshot.host}"
