"""AMD GPUs, through HIP."""

import ctypes
import importlib
from typing import Any

from kvdiag.errors import UndeterminedError
from kvdiag_probes.gpu_memory import GpuRegion, nearest
from kvdiag_probes.memory import MemoryKind, Region

_BINDINGS = ("rocm.bindings.hip", "hip.hip")
"""Newest first: since ROCm 10 hip-python only re-exports the first of them."""
_BUS_ID_BYTES = 32


class HipDriver:
    """One GPU through the Python bindings of HIP."""

    remedy = "load an amdgpu that offers peer memory to ib_core, or take a newer ROCm for dma-buf"

    def __init__(self, ordinal: int) -> None:
        self._hip = _bindings()
        self._ordinal = ordinal
        self.bus_id = str(self._call("hipDeviceGetPCIBusId", _BUS_ID_BYTES, ordinal)).lower()
        self.name = f"ROCm GPU {ordinal} ({self.bus_id})"

    def allocate(self, size: int) -> int:
        self._enter()
        return int(self._call("hipMalloc", size))

    def free(self, pointer: int) -> None:
        self._enter()
        self._call("hipFree", pointer)

    def to_device(self, pointer: int, host: int, size: int) -> None:
        self._enter()
        self._call("hipMemcpy", pointer, host, size, self._hip.hipMemcpyKind.hipMemcpyHostToDevice)
        self._call("hipDeviceSynchronize")

    def from_device(self, host: int, pointer: int, size: int) -> None:
        self._enter()
        self._call("hipDeviceSynchronize")
        self._call("hipMemcpy", host, pointer, size, self._hip.hipMemcpyKind.hipMemcpyDeviceToHost)

    def export_dmabuf(self, pointer: int, size: int) -> int:
        self._enter()
        if not hasattr(self._hip, "hipMemGetHandleForAddressRange"):
            raise UndeterminedError("this HIP has no hipMemGetHandleForAddressRange: a newer ROCm exports dma-bufs")
        found = ctypes.c_int(-1)
        kind = self._hip.hipMemRangeHandleType.hipMemRangeHandleTypeDmaBufFd
        self._call("hipMemGetHandleForAddressRange", ctypes.addressof(found), pointer, size, kind, 0)
        return found.value

    def close(self) -> None:
        """Nothing is held: HIP keeps the device's primary context for the process."""

    def _enter(self) -> None:
        # The current device belongs to the thread, and an agent answers on any of several.
        self._call("hipSetDevice", self._ordinal)

    def _call(self, name: str, *arguments: Any) -> Any:
        return _call(self._hip, name, *arguments)


def allocate_hip(kind: MemoryKind, size: int, device: str) -> Region:
    """Return memory of the AMD GPU nearest to an RDMA device; UndeterminedError saying what is missing."""
    hip = _bindings()
    try:
        gpus = [HipDriver(i) for i in range(int(_call(hip, "hipGetDeviceCount")))]
    except RuntimeError as error:  # the bindings find no libamdhip64
        raise UndeterminedError(f"--memory {kind}: no HIP on this host: {str(error)[:120]}") from error
    if not gpus:
        raise UndeterminedError(f"--memory {kind}: HIP sees no GPU; check HIP_VISIBLE_DEVICES")
    near, how = nearest(device, [gpu.bus_id for gpu in gpus])
    return GpuRegion(gpus[near], size, kind, f", {how}")


def _bindings() -> Any:
    for name in _BINDINGS:
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    raise UndeterminedError("AMD GPU memory needs HIP's Python bindings, not installed here: pip install hip-python")


def _call(hip: Any, name: str, *arguments: Any) -> Any:
    status, *values = getattr(hip, name)(*arguments)
    if int(status) != 0:
        raise UndeterminedError(f"{name}: {getattr(status, 'name', status)}")
    return values[0] if values else None
