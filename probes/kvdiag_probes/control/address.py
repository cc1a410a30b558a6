"""HOST:PORT as users write it."""

from dataclasses import dataclass

from kvdiag.errors import UsageError

DEFAULT_PORT = 18580


@dataclass(frozen=True, slots=True)
class Address:
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str, flag: str) -> Address:
    """Read HOST, HOST:PORT or [IPv6]:PORT; UsageError names `flag`."""
    example = f"write for example 10.0.0.2:{DEFAULT_PORT} or [fd00::2]:{DEFAULT_PORT}"
    host, port = text.strip(), ""
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
