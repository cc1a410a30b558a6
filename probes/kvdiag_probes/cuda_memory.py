"""NVIDIA GPUs, through the CUDA driver."""

from typing import Any

from kvdiag.errors import UndeterminedError
from kvdiag_probes.gpu_memory import GpuRegion, nearest
from kvdiag_probes.memory import MemoryKind, Region


class CudaDriver:
    """One GPU through `cuda-bindings`, in its primary context."""

    remedy = "load nvidia_peermem, or the open GPU kernel modules for dma-buf"

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
        return GpuRegion(gpu, size, kind, f", {how}")
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
