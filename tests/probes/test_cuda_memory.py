"""GPU memory behind its seam: a driver made of host memory here, and the real one where there is a GPU."""

import contextlib
import ctypes
import os
from pathlib import Path
from typing import Any

import pytest

from kvdiag.errors import UndeterminedError
from kvdiag_probes import cuda_memory, pattern
from kvdiag_probes.cuda_memory import allocate_cuda
from kvdiag_probes.gpu_memory import GpuRegion, nearest
from kvdiag_probes.memory import MemoryKind

SIZE = 100_000


class FakeDriver:
    """A GPU whose memory is the host's; the test may spoil it between the copies."""

    name = "fake GPU"
    remedy = "load the fake's modules"

    def __init__(self, dmabuf: bool = True) -> None:
        self.dmabuf = dmabuf
        self.memory: Any = None
        self.freed: list[int] = []
        self.closed = False

    def allocate(self, size: int) -> int:
        self.memory = ctypes.create_string_buffer(size)
        return ctypes.addressof(self.memory)

    def free(self, pointer: int) -> None:
        self.freed.append(pointer)

    def to_device(self, pointer: int, host: int, size: int) -> None:
        ctypes.memmove(pointer, host, size)

    def from_device(self, host: int, pointer: int, size: int) -> None:
        ctypes.memmove(host, pointer, size)

    def export_dmabuf(self, pointer: int, size: int) -> int:
        if not self.dmabuf:
            raise UndeterminedError("cuMemGetHandleForAddressRange: CUDA_ERROR_NOT_SUPPORTED")
        assert size % (64 << 10) == 0
        return os.open(os.devnull, os.O_RDWR)

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Note which of pyverbs' two classes registered what."""
    module = pytest.importorskip("pyverbs.mr", reason="pyverbs is not installed", exc_type=ImportError)
    found: list[tuple[str, int]] = []
    monkeypatch.setattr(module, "MR", lambda domain, size, access, address: found.append(("address", address)))
    monkeypatch.setattr(
        module, "DmaBufMR", lambda domain, size, access, dmabuf, offset: found.append(("dmabuf", offset))
    )
    return found


@pytest.fixture(autouse=True)
def _pyverbs() -> None:
    from kvdiag_probes._pyverbs import make_importable

    try:
        make_importable()
    except UndeterminedError as error:
        pytest.skip(str(error))


def test_the_payload_is_compared_on_the_gpus_own_copy_back() -> None:
    driver = FakeDriver()
    region = GpuRegion(driver, SIZE, MemoryKind.CUDA)
    pattern.fill(region.view, 3)
    region.push(0, SIZE)
    region.pull(0, SIZE)
    assert pattern.find_mismatch(region.view, 3) is None
    driver.memory[777] = bytes([driver.memory[777][0] ^ 1])
    region.pull(0, SIZE)
    found = pattern.find_mismatch(region.view, 3)
    assert found is not None
    assert found.offset == 777
    region.close()
    assert driver.closed and len(driver.freed) == 1


def test_a_copy_back_that_copies_nothing_does_not_pass() -> None:
    driver = FakeDriver()
    region = GpuRegion(driver, SIZE, MemoryKind.CUDA)
    pattern.fill(region.view, 3)
    driver.from_device = lambda host, pointer, size: None  # type: ignore[method-assign]
    region.pull(0, SIZE)
    assert pattern.find_mismatch(region.view, 3) is not None
    region.close()


def test_dma_buf_is_tried_first_and_its_addresses_start_at_zero(registered: list[tuple[str, int]]) -> None:
    region = GpuRegion(FakeDriver(), SIZE, MemoryKind.CUDA)
    assert region.register(None, 7)[1] == 0
    assert registered == [("dmabuf", 0)]
    assert region.note.endswith("registered by dma-buf")
    region.close()


def test_peer_memory_is_the_second_choice_and_the_note_says_why(registered: list[tuple[str, int]]) -> None:
    driver = FakeDriver(dmabuf=False)
    region = GpuRegion(driver, SIZE, MemoryKind.CUDA)
    assert region.register(None, 7)[1] == ctypes.addressof(driver.memory)
    assert registered[0][0] == "address"
    assert "dma-buf failed: cuMemGetHandleForAddressRange: CUDA_ERROR_NOT_SUPPORTED" in region.note
    region.close()


def test_an_explicit_choice_is_kept(registered: list[tuple[str, int]]) -> None:
    peer = GpuRegion(FakeDriver(), SIZE, MemoryKind.CUDA_PEERMEM)
    peer.register(None, 7)
    assert [way for way, _ in registered] == ["address"]
    peer.close()
    only = GpuRegion(FakeDriver(dmabuf=False), SIZE, MemoryKind.CUDA_DMABUF)
    with pytest.raises(UndeterminedError, match="--memory cuda-dmabuf: fake GPU"):
        only.register(None, 7)
    only.close()


def test_the_gpu_that_shares_most_bridges_with_the_adapter_is_taken(tmp_path: Path) -> None:
    root = tmp_path / "devices/pci0000:00/0000:00:01.0"
    for name in ("0000:01:00.0/0000:02:00.0", "0000:01:00.0/0000:02:01.0/0000:04:00.0", "0000:05:00.0"):
        (root / name).mkdir(parents=True)
    (tmp_path / "class/infiniband/mlx5_0").mkdir(parents=True)
    (tmp_path / "class/infiniband/mlx5_0/device").symlink_to(root / "0000:01:00.0/0000:02:00.0")
    (tmp_path / "bus/pci/devices").mkdir(parents=True)
    for name, path in (("0000:04:00.0", "0000:01:00.0/0000:02:01.0/0000:04:00.0"), ("0000:05:00.0", "0000:05:00.0")):
        (tmp_path / "bus/pci/devices" / name).symlink_to(root / path)
    best, why = nearest("mlx5_0", ["00000000:05:00.0", "00000000:04:00.0"], tmp_path)
    assert best == 1
    assert why.startswith("nearest to mlx5_0 by PCI")
    assert nearest("rxe0", ["00000000:05:00.0"], tmp_path) == (0, "first GPU: rxe0 is no PCI device")


def test_a_gpu_keeps_what_is_copied_to_it_and_exports_it() -> None:
    try:
        region = allocate_cuda(MemoryKind.CUDA, SIZE, "rxe0")
    except UndeterminedError as error:
        pytest.skip(f"needs hardware: {error}")
    assert isinstance(region, GpuRegion)
    pattern.fill(region.view, 9)
    region.push(0, SIZE)
    pattern.fill(region.view, 10)
    region.pull(0, SIZE)
    assert pattern.find_mismatch(region.view, 9) is None
    # Every GPU that can be exported must be; a driver that cannot says so by name.
    with contextlib.suppress(UndeterminedError):
        os.close(region._driver.export_dmabuf(region._pointer, region._size))
    region.close()


def test_without_bindings_the_extra_to_install_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "cuda.bindings", None)
    with pytest.raises(UndeterminedError, match=r"pip install 'kvdiag\[gpu\]'"):
        cuda_memory.allocate_cuda(MemoryKind.CUDA, SIZE, "rxe0")
