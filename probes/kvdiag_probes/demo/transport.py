"""What the demo needs of a transport: push blocks of a pool into a peer's pool, and see them arrive."""

import importlib
import mmap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, cast

from kvdiag_probes.demo import nixl_import
from kvdiag_probes.demo.channel import Endpoint
from kvdiag_probes.demo.settings import Settings
from kvdiag_probes.demo.workload import LAYERS, POOL_BYTES

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

STAGING_TRIAL_BYTES = 32 << 20
STAGING_LEAST_BYTES, STAGING_MOST_BYTES = 16 << 20, 128 << 20
STAGING_COST_S = 0.022
"""What one staging buffer is to cost, allocated, registered and given back: a third of a request's other stages."""


class Transfer(Protocol):
    """One posted transfer."""

    def descriptors(self) -> int:
        """How many descriptors it took after adjacent ones were merged; known once it is done."""
        ...

    def done(self) -> bool:
        """Progress it, and return whether it is complete here; UnavailableError when it failed."""
        ...

    def release(self) -> None:
        """Give back what it held; deregisters a staging buffer."""
        ...


class Initiator(Protocol):
    """The prefill side."""

    @property
    def registers(self) -> bool:
        """Whether it registers memory at all."""
        ...

    @property
    def target_sees_arrival(self) -> bool:
        """Whether the target learns of an arrival by itself; else the initiator has to tell it."""
        ...

    def endpoint(self) -> Endpoint: ...

    def connect(self, peer: Endpoint) -> None: ...

    def register_staging(self, size: int) -> tuple["Staging", bytes]:
        """Allocate and register a buffer for one request alone; return it and the metadata the peer must load."""
        ...

    def post(self, number: int, slots: "NDArray[np.int32]", staging: "Staging | None") -> Transfer:
        """Push the pool's slots (or the staging buffer) into the same slots of the peer's pool.

        The first bytes of the first and of the last slot carry the request's number, for decode to verify.
        """
        ...


class Target(Protocol):
    """The decode side."""

    @property
    def pool(self) -> memoryview: ...

    def endpoint(self) -> Endpoint: ...

    def load(self, metadata: bytes) -> None:
        """Learn of memory that the peer registered."""
        ...

    def arrivals(self) -> Sequence[int]:
        """Progress, and return the numbers of the requests whose data arrived since the last call."""
        ...


def mark(number: int) -> bytes:
    """Return what the first and the last slot of a request's data begin with."""
    return number.to_bytes(8, "little", signed=True)


@dataclass(frozen=True, slots=True)
class Staging:
    """A buffer of one request: where it is, and how to deregister and unmap it."""

    memory: mmap.mmap
    address: int
    layer_bytes: int
    free: Callable[[], None]


def allocate(size: int) -> tuple[mmap.mmap, int]:
    """Map zeroed anonymous memory with every page present, as registration with an RDMA device would leave it.

    Returns the mapping and its address. UCX over TCP registers without touching a page, where an RDMA device pins
    each one: populating the mapping keeps that part of the cost.
    """
    import ctypes

    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE)
    return memory, ctypes.addressof(ctypes.c_char.from_buffer(memory))


def staging_bytes(cost_s: float) -> int:
    """Return the size of a staging buffer that costs STAGING_COST_S where STAGING_TRIAL_BYTES cost `cost_s` seconds.

    Page faults differ by ten times between machines; whole MiB per layer, within bounds.
    """
    size = STAGING_TRIAL_BYTES * STAGING_COST_S / max(cost_s, 1e-6)
    step = LAYERS << 20
    return int(min(max(size, STAGING_LEAST_BYTES), STAGING_MOST_BYTES)) // step * step


def make_pool() -> tuple[mmap.mmap, int]:
    """Return a KV pool and its address."""
    return allocate(POOL_BYTES)


def open_initiators(settings: Settings, name: str, address: str) -> Sequence[Initiator]:
    """Create the prefill side of the transport that the settings name, and of the TCP beside it if they want one."""
    module = importlib.import_module(_module(settings))
    return [cast("Initiator", module.open_initiator(one, address)) for one in _names(settings, name)]


def open_targets(settings: Settings, name: str, address: str) -> Sequence[Target]:
    """Create the decode side of the transport that the settings name, and of the TCP beside it if they want one."""
    module = importlib.import_module(_module(settings))
    return [cast("Target", module.open_target(one, address)) for one in _names(settings, name)]


def _names(settings: Settings, name: str) -> Iterator[str]:
    yield name
    if settings.tcp_device:
        nixl_import.pin("tcp", settings.tcp_device)
        yield f"{name}-tcp"


def _module(settings: Settings) -> str:
    return f"kvdiag_probes.demo.transport_{settings.transport}"
