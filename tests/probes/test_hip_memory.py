"""AMD GPU memory behind the seam of GPU memory: bindings made of host memory, shaped as those of HIP are."""

# ruff: noqa: N802, N815 - the names are HIP's

import ctypes
import enum
import os
from types import SimpleNamespace
from typing import Any

import pytest

from kvdiag.errors import UndeterminedError
from kvdiag_probes import hip_memory, pattern
from kvdiag_probes.gpu_memory import GpuRegion
from kvdiag_probes.hip_memory import HipDriver, allocate_hip
from kvdiag_probes.memory import MemoryKind

SIZE = 100_000


class Status(enum.IntEnum):
    hipSuccess = 0
    hipErrorOutOfMemory = 2
    hipErrorNoDevice = 100


class Kind(enum.IntEnum):
    hipMemcpyHostToDevice = 1
    hipMemcpyDeviceToHost = 2


class Hip:
    """Functions that answer in tuples, the status first; pointers come as objects that are integers when asked."""

    hipMemcpyKind = Kind
    hipMemRangeHandleType = SimpleNamespace(hipMemRangeHandleTypeDmaBufFd=1)

    def __init__(self, devices: int = 2) -> None:
        self.devices = devices
        self.held: dict[int, Any] = {}
        self.current: int | None = None
        self.refuse: str | None = None

    def _answer(self, name: str, *values: Any) -> tuple[Any, ...]:
        return (Status.hipErrorOutOfMemory,) if self.refuse == name else (Status.hipSuccess, *values)

    def hipGetDeviceCount(self) -> tuple[Any, ...]:
        return (Status.hipSuccess, self.devices) if self.devices else (Status.hipErrorNoDevice, 0)

    def hipDeviceGetPCIBusId(self, length: int, device: int) -> tuple[Any, ...]:
        assert length >= 13
        return self._answer("hipDeviceGetPCIBusId", f"0000:C{device}:00.0")

    def hipSetDevice(self, device: int) -> tuple[Any, ...]:
        self.current = device
        return self._answer("hipSetDevice")

    def hipMalloc(self, size: int) -> tuple[Any, ...]:
        if self.refuse == "hipMalloc":
            return self._answer("hipMalloc")
        memory = ctypes.create_string_buffer(size)
        self.held[ctypes.addressof(memory)] = memory
        return self._answer("hipMalloc", _Pointer(ctypes.addressof(memory)))

    def hipFree(self, pointer: int) -> tuple[Any, ...]:
        del self.held[pointer]
        return self._answer("hipFree")

    def hipMemcpy(self, to: int, source: int, size: int, kind: Kind) -> tuple[Any, ...]:
        assert isinstance(kind, Kind)
        ctypes.memmove(to, source, size)
        return self._answer("hipMemcpy")

    def hipDeviceSynchronize(self) -> tuple[Any, ...]:
        return self._answer("hipDeviceSynchronize")

    def hipMemGetHandleForAddressRange(
        self, handle: int, pointer: int, size: int, kind: int, flags: int
    ) -> tuple[Any, ...]:
        assert pointer in self.held and size and (kind, flags) == (1, 0)
        ctypes.c_int.from_address(handle).value = os.open(os.devnull, os.O_RDWR)
        return self._answer("hipMemGetHandleForAddressRange")


class _Pointer:
    def __init__(self, address: int) -> None:
        self._address = address

    def __int__(self) -> int:
        return self._address


@pytest.fixture
def hip(monkeypatch: pytest.MonkeyPatch) -> Hip:
    made = Hip()
    monkeypatch.setattr(hip_memory, "_bindings", lambda: made)
    return made


def test_a_payload_goes_to_the_gpu_and_its_own_copy_comes_back(hip: Hip) -> None:
    region = allocate_hip(MemoryKind.ROCM, SIZE, "rxe0")
    assert isinstance(region, GpuRegion)
    assert region.note == "ROCm GPU 0 (0000:c0:00.0), first GPU: rxe0 is no PCI device"
    pattern.fill(region.view, 7)
    wanted = pattern.digest(region.view)
    region.push(0, SIZE)
    pattern.fill(region.view, 8)
    region.pull(0, SIZE)
    assert pattern.digest(region.view) == wanted and hip.current == 0
    region.close()
    assert hip.held == {}


def test_a_dma_buf_is_exported_where_hip_can(hip: Hip, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = HipDriver(1)
    pointer = driver.allocate(65536)
    fd = driver.export_dmabuf(pointer, 65536)
    os.close(fd)
    hip.refuse = "hipMemGetHandleForAddressRange"
    with pytest.raises(UndeterminedError, match="hipMemGetHandleForAddressRange: hipErrorOutOfMemory"):
        driver.export_dmabuf(pointer, 65536)
    monkeypatch.delattr(Hip, "hipMemGetHandleForAddressRange")
    with pytest.raises(UndeterminedError, match="a newer ROCm exports dma-bufs"):
        driver.export_dmabuf(pointer, 65536)


def test_what_is_missing_is_said(hip: Hip, monkeypatch: pytest.MonkeyPatch) -> None:
    hip.refuse = "hipMalloc"
    with pytest.raises(UndeterminedError, match="hipMalloc: hipErrorOutOfMemory"):
        allocate_hip(MemoryKind.ROCM, SIZE, "rxe0")
    hip.devices = 0
    with pytest.raises(UndeterminedError, match="hipGetDeviceCount: hipErrorNoDevice"):
        allocate_hip(MemoryKind.ROCM, SIZE, "rxe0")

    def no_library() -> None:
        raise RuntimeError("failed to dlopen libamdhip64.so")

    monkeypatch.setattr(hip, "hipGetDeviceCount", no_library)
    with pytest.raises(UndeterminedError, match="rocm: no HIP on this host: failed to dlopen libamdhip64"):
        allocate_hip(MemoryKind.ROCM, SIZE, "rxe0")


def test_without_bindings_the_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hip_memory, "_BINDINGS", ("kvdiag.no_such_module",))
    with pytest.raises(UndeterminedError, match="pip install hip-python"):
        allocate_hip(MemoryKind.ROCM, SIZE, "rxe0")
