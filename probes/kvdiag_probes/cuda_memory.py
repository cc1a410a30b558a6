"""GPU memory for transfers, through the CUDA driver: by dma-buf, or by its own address with nvidia_peermem."""

import ctypes
import mmap
import os
from pathlib import Path
from typing import Any, Protocol

from kvdiag.errors import UndeterminedError
from kvdiag_probes.memory import MemoryKind, Region

_GPU_PAGE_BYTES = 64 << 10
"""GPUDirect RDMA pins GPU memory in 64 KiB pages (NVIDIA, GPUDirect RDMA, "Pinning GPU memory")."""
_SYSFS = Path("/sys")


class Driver(Protocol):
    """The calls on one GPU that transfers need; each raises UndeterminedError where the GPU's driver refuses."""

    name: str

    def allocate(self, size: int) -> int: ...

    def free(self, pointer: int) -> None: ...

    def to_device(self, pointer: int, host: int, size: int) -> None: ...

    def from_device(self, host: int, pointer: int, size: int) -> None: ...

    def export_dmabuf(self, pointer: int, size: int) -> int:
        """Return a dma-buf file descriptor of the memory."""
        ...

    def close(self) -> None: ...


class CudaRegion:
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
        """Register by dma-buf (addresses then start at 0) or by the GPU's address; `cuda` tries them in this order."""
        if self._kind is MemoryKind.CUDA_PEERMEM:
            return self._by_address(domain, access, "as asked for")
        try:
            return self._by_dmabuf(domain, access)
        except _refusals() as error:
            if self._kind is MemoryKind.CUDA_DMABUF:
                raise UndeterminedError(f"--memory cuda-dmabuf: {self._driver.name}: {error}") from error
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
                "load nvidia_peermem, or the open GPU kernel modules for dma-buf"
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


class CudaDriver:
    """One GPU through `cuda-bindings`, in its primary context."""

    def __init__(self, ordinal: int) -> None:
        self._cuda = _bindings()
        self._device = self._call("cuDeviceGet", ordinal)
        self.bus_id = str(self._call("cuDeviceGetPCIBusId", 32, self._device).split(b"\0")[0].decode()).lower()
        self.name = f"CUDA GPU {ordinal} ({self.bus_id})"
        self._context = self._call("cuDevicePrimaryCtxRetain", self._device)

    def allocate(self, size: int) -> int:
        self._enter()
        pointer = int(self._call("cuMemAlloc", size))
        # Copies through the driver and accesses by the adapter must not be reordered (CUDA, "Sync memops").
        attribute = self._cuda.CUpointer_attribute.CU_POINTER_ATTRIBUTE_SYNC_MEMOPS
        self._call("cuPointerSetAttribute", True, attribute, pointer)
        return pointer

    def free(self, pointer: int) -> None:
        self._enter()
        self._call("cuMemFree", pointer)

    def to_device(self, pointer: int, host: int, size: int) -> None:
        self._enter()
        self._call("cuMemcpyHtoD", pointer, host, size)
        self._call("cuCtxSynchronize")

    def from_device(self, host: int, pointer: int, size: int) -> None:
        self._enter()
        self._flush()
        self._call("cuMemcpyDtoH", host, pointer, size)

    def export_dmabuf(self, pointer: int, size: int) -> int:
        self._enter()
        kind = self._cuda.CUmemRangeHandleType.CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD
        return int(self._call("cuMemGetHandleForAddressRange", pointer, size, kind, 0))

    def close(self) -> None:
        self._call("cuDevicePrimaryCtxRelease", self._device)

    def _enter(self) -> None:
        # Contexts belong to threads, and an agent answers on any of several.
        self._call("cuCtxSetCurrent", self._context)

    def _flush(self) -> None:
        """Make the adapter's writes visible to the GPU where the platform leaves that to software."""
        cuda = self._cuda
        options = self._call(
            "cuDeviceGetAttribute",
            cuda.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS,
            self._device,
        )
        if options & int(cuda.CUflushGPUDirectRDMAWritesOptions.CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST):
            self._call(
                "cuFlushGPUDirectRDMAWrites",
                cuda.CUflushGPUDirectRDMAWritesTarget.CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX,
                cuda.CUflushGPUDirectRDMAWritesScope.CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER,
            )

    def _call(self, name: str, *arguments: Any) -> Any:
        return _call(self._cuda, name, *arguments)


def allocate_cuda(kind: MemoryKind, size: int, device: str) -> Region:
    """Return memory of the GPU nearest to an RDMA device; UndeterminedError saying what is missing."""
    gpu, how = nearest_driver(kind, device)
    try:
        return CudaRegion(gpu, size, kind, f", {how}")
    except BaseException:
        gpu.close()
        raise


def nearest_driver(kind: MemoryKind, device: str) -> tuple[CudaDriver, str]:
    """Return the GPU nearest to an RDMA device and how that was seen; UndeterminedError saying what is missing."""
    cuda = _bindings()
    try:
        _call(cuda, "cuInit", 0)
        gpus = [CudaDriver(i) for i in range(int(_call(cuda, "cuDeviceGetCount")))]
    except RuntimeError as error:  # cuda-bindings finds no libcuda
        raise UndeterminedError(f"--memory {kind}: no CUDA driver on this host") from error
    if not gpus:
        raise UndeterminedError(f"--memory {kind}: the CUDA driver sees no GPU; check CUDA_VISIBLE_DEVICES")
    near, how = nearest(device, [gpu.bus_id for gpu in gpus])
    for i, gpu in enumerate(gpus):
        if i != near:
            gpu.close()
    return gpus[near], how


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


def _bindings() -> Any:
    try:
        from cuda.bindings import driver
    except ImportError as error:
        raise UndeterminedError(
            "GPU memory needs cuda-bindings, which is not installed: pip install 'kvdiag[gpu]'"
        ) from error
    return driver


def _call(cuda: Any, name: str, *arguments: Any) -> Any:
    status, *values = getattr(cuda, name)(*arguments)
    if int(status) != 0:
        raise UndeterminedError(f"{name}: {getattr(status, 'name', status)}")
    return values[0] if values else None


def _refusals() -> tuple[type[Exception], ...]:
    try:
        from pyverbs.pyverbs_error import PyverbsError
    except ImportError:
        return (UndeterminedError,)
    return (UndeterminedError, PyverbsError)
