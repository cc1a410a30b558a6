"""BAR1: how much GPU memory an RDMA device can have registered at once, tried with the GPU that is nearest to it."""

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from kvdiag.errors import UndeterminedError
from kvdiag.model.gpu import Gpu, NvidiaGpus
from kvdiag.model.missing import Missing
from kvdiag.model.probe_register import LimitRow
from kvdiag_probes.cuda_memory import nearest_driver
from kvdiag_probes.gpu_memory import Driver
from kvdiag_probes.libibverbs import RegistrationRefusedError
from kvdiag_probes.memory import MemoryKind

_CHUNK = 16 << 20


class DmaBufRegistrar(Protocol):
    """What registers a GPU's memory: by address through peer memory, or by dma-buf."""

    def register(self, address: int, size: int) -> Any: ...

    def register_dmabuf(self, fd: int, size: int) -> Any: ...

    def deregister(self, region: Any) -> None: ...


@dataclass(frozen=True, slots=True)
class Window:
    """A GPU's memory, and what its management library says of its window at this moment."""

    driver: Driver
    gpu: Callable[[], Gpu]


@contextmanager
def open_window(device: str) -> Iterator[Window]:
    """Yield the window of the GPU nearest to an RDMA device; UndeterminedError says why there is none."""
    from kvdiag.sources.base import Context
    from kvdiag.sources.nvidia_gpus import SOURCE

    def read() -> NvidiaGpus:
        found = SOURCE.read(Context())
        if isinstance(found, Missing):
            raise UndeterminedError(found.missing)
        return found

    read()
    driver, _ = nearest_driver(MemoryKind.CUDA, device)
    domain, _, rest = driver.bus_id.partition(":")
    address = f"{domain[-4:]}:{rest}"

    def gpu() -> Gpu:
        found = read().at(address)
        if found is None:
            raise UndeterminedError(f"NVML does not list the GPU {address} that CUDA uses")
        return found

    try:
        yield Window(driver, gpu)
    finally:
        driver.close()


def reach_window(domain: DmaBufRegistrar, window: Window, most_bytes: int) -> LimitRow:
    """Register pieces of GPU memory until one is refused or `most_bytes` are; free everything.

    UndeterminedError where not one piece can be registered, or the window's size cannot be read.
    """
    before = window.gpu()
    if isinstance(before.window_bytes, Missing):
        raise UndeterminedError(f"{window.driver.name}: {before.window_bytes.missing}")
    refusal: str | None = None
    stopped = f"the probe stops at {most_bytes} bytes (--limit-bytes)"
    held = 0
    how = ""
    chunk = min(_CHUNK, most_bytes)
    with ExitStack() as stack:
        while (held + 1) * chunk <= most_bytes:
            try:
                pointer = window.driver.allocate(chunk)
                stack.callback(window.driver.free, pointer)
                region, how = _register(domain, window.driver, pointer, chunk)
            except UndeterminedError as error:
                stopped = f"the GPU gives no more memory: {error}"
                break
            except RegistrationRefusedError as error:
                refusal = stopped = errno.errorcode.get(error.code, str(error.code))
                break
            stack.callback(domain.deregister, region)
            held += 1
        during = window.gpu()
    if not held:
        raise UndeterminedError(f"{window.driver.name}: {chunk} bytes cannot be registered: {stopped}")
    return LimitRow(
        name="bar1",
        allowed=before.window_bytes,
        reached=held * chunk,
        status="not_reached" if refusal is None else "reached",
        refusal=refusal,
        reason=f"{window.driver.name}, registered by {how}; in use before {_bytes(before)}, at the end {_bytes(during)}"
        + (f"; {stopped}" if refusal is None else ""),
    )


def not_observable(reason: str) -> LimitRow:
    """Return the row that says why nothing was tried."""
    return LimitRow(name="bar1", allowed=None, reached=None, status="not_observable", refusal=None, reason=reason)


def _register(domain: DmaBufRegistrar, driver: Driver, pointer: int, size: int) -> tuple[Any, str]:
    try:
        fd = driver.export_dmabuf(pointer, size)
    except UndeterminedError:
        return domain.register(pointer, size), "peer memory"
    try:
        return domain.register_dmabuf(fd, size), "dma-buf"
    except RegistrationRefusedError as error:
        if error.code not in (errno.EOPNOTSUPP, errno.EPROTONOSUPPORT, errno.ENOSYS):
            raise
        return domain.register(pointer, size), "peer memory"
    finally:
        os.close(fd)


def _bytes(gpu: Gpu) -> str:
    used = gpu.window_used_bytes
    return f"an unknown part ({used.missing})" if isinstance(used, Missing) else f"{used} bytes"
