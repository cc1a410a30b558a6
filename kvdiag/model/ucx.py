"""What UCX offers on a host, as `ucx_info -d` lists it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class UcxTransport:
    """`usable` is False where ucx_info printed "failed to open interface" for it."""

    name: str
    device: str
    usable: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class UcxTransports:
    """Every transport in the order listed; `origin` names the program or file that said so."""

    transports: tuple[UcxTransport, ...]
    origin: str
