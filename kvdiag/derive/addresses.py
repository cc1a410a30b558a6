"""Addresses at which a host can, or cannot, be reached."""

import ipaddress

from kvdiag.model.interfaces import NetInterfaces
from kvdiag.model.missing import present
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
    """Return this host's first global address, IPv4 before IPv6, of an interface that is up."""
    interfaces = present(snapshot.part(NetInterfaces))
    addresses = [
        ipaddress.ip_address(text)
        for interface in (interfaces.devices if interfaces else ())
        if interface.operstate == "up"
        for text in interface.addresses
    ]
    usable = [address for address in addresses if not address.is_loopback and not address.is_link_local]
    return str(min(usable, key=lambda address: address.version)) if usable else "ADDRESS-OF-THIS-HOST"
