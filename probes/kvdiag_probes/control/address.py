"""HOST:PORT as users write it."""

import socket
from dataclasses import dataclass

from kvdiag.errors import UsageError

DEFAULT_PORT = 18580


@dataclass(frozen=True, slots=True)
class Address:
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def resolve(address: Address, flag: str) -> tuple[socket.AddressFamily, tuple[str, int]]:
    """Return family, IP address and port; UsageError names `flag` where the host is no address and no name known here.

    The resolver may take seconds where a name server does not answer.
    """
    try:
        found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or "a name cannot be so"
        raise UsageError(
            f"{flag}: {address.host!r} is no address and no name known here ({why}); give an address of this host, or "
            "127.0.0.1"
        ) from error
    family, _, _, _, where = found[0]
    return family, (str(where[0]), int(where[1]))


def parse_address(text: str, flag: str) -> Address:
    """Read HOST, HOST:PORT or [IPv6]:PORT; UsageError names `flag`."""
    example = f"write for example 10.0.0.2:{DEFAULT_PORT} or [fd00::2]:{DEFAULT_PORT}"
    host, port = text.strip(), ""
    scheme, is_url, rest = host.partition("://")
    if is_url:
        bare = rest.partition("/")[0] or f"10.0.0.2:{DEFAULT_PORT}"
        tls = "; TLS is chosen by --tls-ca" if scheme == "https" else ""
        raise UsageError(f"{flag}: {text!r} is a URL: leave {scheme}:// out{tls}, write {bare}")
    if host.startswith("["):
        host, closed, rest = host[1:].partition("]")
        if not closed or (rest and not rest.startswith(":")):
            raise UsageError(f"{flag}: {text!r} is not HOST:PORT; {example}")
        port = rest[1:]
    elif host.count(":") == 1:
        host, _, port = host.partition(":")
    elif ":" in host:
        raise UsageError(f"{flag}: {text!r}: an IPv6 address goes in brackets; {example}")
    if not host or any(character in host for character in " /@?#"):
        raise UsageError(f"{flag}: {text!r} names no host; {example}")
    if port and not (port.isdecimal() and port.isascii() and int(port) <= 65535):
        raise UsageError(f"{flag}: {port!r} in {text!r} is not a port from 0 to 65535; {example}")
    return Address(host, int(port) if port else DEFAULT_PORT)
