"""What UCX offers on a host, as `ucx_info -d` lists it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class UcxTransport:
    """`usable` is False where ucx_info printed "failed to open interface" for it."""

    name: str
    device: str
    usable: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class UcxDomain:
    """A memory domain; `memory_types` those it can access or register ("host", "cuda", "rocm"), () where not shown.

    `dmabuf` is whether the line of registration has that word (UCX 1.14 and later).
    """

    name: str
    component: str
    memory_types: tuple[str, ...]
    dmabuf: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class UcxTransports:
    """Every transport and memory domain in the order listed; `origin` names the program or file that said so."""

    transports: tuple[UcxTransport, ...]
    origin: str
    domains: tuple[UcxDomain, ...] = ()
