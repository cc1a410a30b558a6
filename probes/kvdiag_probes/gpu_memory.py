"""GPU memory for transfers, whoever made the GPU: registered by dma-buf, or by its own address with peer memory."""

import ctypes
import mmap
import os
from pathlib import Path
from typing import Any, Protocol

from kvdiag.errors import UndeterminedError
from kvdiag_probes.memory import MemoryKind

_GPU_PAGE_BYTES = 64 << 10
"""GPUDirect RDMA pins GPU memory in 64 KiB pages (NVIDIA, GPUDirect RDMA, "Pinning GPU memory"); amdgpu in 4 KiB."""
_SYSFS = Path("/sys")
_BY_DMABUF = (MemoryKind.CUDA_DMABUF, MemoryKind.ROCM_DMABUF)
_BY_ADDRESS = (MemoryKind.CUDA_PEERMEM, MemoryKind.ROCM_PEERMEM)


class Driver(Protocol):
    """The calls on one GPU that transfers need; each raises UndeterminedError where the GPU's driver refuses.

    `remedy` says what makes the GPU's memory registrable.
    """

    name: str
    remedy: str

    def allocate(self, size: int) -> int: ...

    def free(self, pointer: int) -> None: ...

    def to_device(self, pointer: int, host: int, size: int) -> None: ...

    def from_device(self, host: int, pointer: int, size: int) -> None: ...

    def export_dmabuf(self, pointer: int, size: int) -> int:
        """Return a dma-buf file descriptor of the memory."""
        ...

    def close(self) -> None: ...


class GpuRegion:
    """GPU memory with a host buffer beside it, where payloads are made and compared."""

    def __init__(self, driver: Driver, size: int, kind: MemoryKind, note: str = "") -> None:
        self._driver = driver
        self._kind = kind
        self._size = -(-size // _GPU_PAGE_BYTES) * _GPU_PAGE_BYTES
        self._fd: int | None = None
        self._map = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.view = memoryview(self._map)
        self._pointer = driver.allocate(self._size)
        self.note = f"{driver.name}{note}"

    def register(self, domain: Any, access: int) -> tuple[Any, int]:
        """Register by dma-buf (addresses then start at 0) or by the GPU's address; `cuda`, `rocm`: in this order."""
        if self._kind in _BY_ADDRESS:
            return self._by_address(domain, access, "as asked for")
        try:
            return self._by_dmabuf(domain, access)
        except _refusals() as error:
            if self._kind in _BY_DMABUF:
                raise UndeterminedError(f"--memory {self._kind}: {self._driver.name}: {error}") from error
            return self._by_address(domain, access, f"dma-buf failed: {error}")

    def _by_dmabuf(self, domain: Any, access: int) -> tuple[Any, int]:
        from pyverbs.mr import DmaBufMR

        self._fd = self._driver.export_dmabuf(self._pointer, self._size)
        region = DmaBufMR(domain, len(self.view), access, dmabuf=self._fd, offset=0)
        self.note += ", registered by dma-buf"
        return region, 0

    def _by_address(self, domain: Any, access: int, why: str) -> tuple[Any, int]:
        from pyverbs.mr import MR

        try:
            region = MR(domain, len(self.view), access, address=self._pointer)
        except _refusals() as error:
            raise UndeterminedError(
                f"--memory {self._kind}: {self._driver.name} cannot be registered by its address ({error}; {why}): "
                f"{self._driver.remedy}"
            ) from error
        self.note += f", registered by its address through peer memory ({why})"
        return region, self._pointer

    def push(self, start: int, stop: int) -> None:
        """Copy from the host buffer to the GPU."""
        self._driver.to_device(self._pointer + start, self._host + start, stop - start)

    def pull(self, start: int, stop: int) -> None:
        """Copy the GPU's bytes to the host buffer, which is wiped first: nothing but the GPU's copy can pass."""
        ctypes.memset(self._host + start, 0xA5, stop - start)
        self._driver.from_device(self._host + start, self._pointer + start, stop - start)

    def close(self) -> None:
        """Free the GPU's memory and the descriptor; the host buffer too, unless someone still holds a view of it."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
        self._driver.free(self._pointer)
        self._driver.close()
        try:
            self.view.release()
            self._map.close()
        except BufferError:
            return

    @property
    def _host(self) -> int:
        return ctypes.addressof(ctypes.c_char.from_buffer(self._map))


def nearest(device: str, bus_ids: list[str], sysfs: Path = _SYSFS) -> tuple[int, str]:
    """Return which PCI function shares most bridges with an RDMA device, and how that was seen."""
    adapter = (sysfs / "class/infiniband" / device / "device").resolve().parts
    if not any(part.startswith("pci") for part in adapter):
        return 0, f"first GPU: {device} is no PCI device"
    shared = []
    for bus_id in bus_ids:
        # The driver writes an eight-digit domain, sysfs four.
        domain, _, rest = bus_id.partition(":")
        path = (sysfs / "bus/pci/devices" / f"{domain[-4:]}:{rest}").resolve().parts
        shared.append(_shared(adapter, path))
    best = max(range(len(shared)), key=lambda i: shared[i])
    return best, f"nearest to {device} by PCI: {max(0, shared[best] - 3)} levels shared"


def _shared(one: tuple[str, ...], other: tuple[str, ...]) -> int:
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def _refusals() -> tuple[type[Exception], ...]:
    try:
        from pyverbs.pyverbs_error import PyverbsError
    except ImportError:
        return (UndeterminedError,)
    return (UndeterminedError, PyverbsError)
