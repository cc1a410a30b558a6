"""Memory of several kinds for transfers, each with a host view in which payloads are made and compared."""

import ctypes
import errno
import mmap
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

from kvdiag.errors import UndeterminedError

HUGE_PAGE_BYTES = 2 << 20
"""The size of huge pages on x86-64, and on arm64 with 4 KiB base pages."""
_MAP_HUGETLB = 0x40000  # <asm-generic/mman-common.h>


class MemoryKind(StrEnum):
    """Host memory in base pages, transparent or explicit huge pages; GPU memory, by dma-buf or peer memory.

    auto: an NVIDIA GPU's memory, an AMD GPU's, or host memory, the first that there is.
    """

    AUTO = "auto"
    HOST = "host"
    THP = "thp"
    HUGE = "huge"
    CUDA = "cuda"
    CUDA_DMABUF = "cuda-dmabuf"
    CUDA_PEERMEM = "cuda-peermem"
    ROCM = "rocm"
    ROCM_DMABUF = "rocm-dmabuf"
    ROCM_PEERMEM = "rocm-peermem"


class Region(Protocol):
    """`view` is host memory; `push` and `pull` copy between it and the memory itself where that is elsewhere.

    `note` says what was got, and why. `register` returns a pyverbs memory region and the address that work requests
    use for its first byte.
    """

    note: str

    @property
    def view(self) -> memoryview: ...

    def register(self, domain: Any, access: int) -> tuple[Any, int]: ...

    def push(self, start: int, stop: int) -> None: ...

    def pull(self, start: int, stop: int) -> None: ...

    def close(self) -> None: ...


def allocate(kind: MemoryKind, size: int, device: str) -> Region:
    """Return touched memory of a kind, near an RDMA device; UndeterminedError where this host has none of it."""
    if kind in (MemoryKind.HOST, MemoryKind.THP, MemoryKind.HUGE):
        return HostRegion(kind, size)
    from kvdiag_probes.cuda_memory import allocate_cuda
    from kvdiag_probes.hip_memory import allocate_hip

    if kind is not MemoryKind.AUTO:
        return (allocate_hip if kind.startswith("rocm") else allocate_cuda)(kind, size, device)
    why = []
    for wanted, attempt in ((MemoryKind.CUDA, allocate_cuda), (MemoryKind.ROCM, allocate_hip)):
        try:
            return attempt(wanted, size, device)
        except UndeterminedError as error:
            why.append(str(error))
    region = HostRegion(MemoryKind.HOST, size)
    region.note += f"; auto: {'; '.join(why)}"
    return region


class HostRegion:
    """Private anonymous memory, every page of it faulted in, so that registering it is not charged for that."""

    def __init__(self, kind: MemoryKind, size: int) -> None:
        whole = size if kind is MemoryKind.HOST else -(-size // HUGE_PAGE_BYTES) * HUGE_PAGE_BYTES
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        if kind is MemoryKind.HUGE:
            self._map = _huge(whole, flags)
        else:
            self._map = mmap.mmap(-1, whole + (HUGE_PAGE_BYTES if kind is MemoryKind.THP else 0), flags=flags)
        start = 0
        if kind is MemoryKind.THP:
            start = -ctypes.addressof(ctypes.c_char.from_buffer(self._map)) % HUGE_PAGE_BYTES
            self._map.madvise(mmap.MADV_HUGEPAGE)
        self._whole = memoryview(self._map)
        self.view = self._whole[start : start + size]
        for offset in range(0, size, mmap.PAGESIZE):
            self.view[offset] = 0
        self.note = {
            MemoryKind.HOST: f"host, {mmap.PAGESIZE} byte pages",
            MemoryKind.HUGE: f"host, explicit huge pages of {HUGE_PAGE_BYTES >> 20} MiB",
        }.get(kind) or self._thp_note(size)

    @property
    def address(self) -> int:
        """Where the memory begins."""
        return ctypes.addressof(ctypes.c_char.from_buffer(self.view))

    def register(self, domain: Any, access: int) -> tuple[Any, int]:
        from pyverbs.mr import MR

        return MR(domain, len(self.view), access, address=self.address), self.address

    def push(self, start: int, stop: int) -> None:
        """Do nothing: the transport reads the buffer itself."""

    def pull(self, start: int, stop: int) -> None:
        """Do nothing: the transport fills the buffer itself."""

    def close(self) -> None:
        """Give the memory back to the system; a view that someone still holds keeps it alive instead."""
        try:
            self.view.release()
            self._whole.release()
            self._map.close()
        except BufferError:
            return

    def _thp_note(self, size: int) -> str:
        # The kernel counts whole huge pages, the last of which the buffer may only begin.
        got = min(size, huge_bytes(Path("/proc/self/smaps").read_text(), self.address))
        return f"host, transparent huge pages: {got} of {size} bytes in huge pages"


def huge_bytes(smaps: str, address: int) -> int:
    """Return AnonHugePages, in bytes, of the mapping in /proc/PID/smaps that holds an address (proc(5))."""
    inside = False
    for line in smaps.splitlines():
        first = line.split(None, 1)[0]
        if not first.endswith(":"):
            low, _, high = first.partition("-")
            inside = int(low, 16) <= address < int(high, 16)
        elif inside and first == "AnonHugePages:":
            return int(line.split()[1]) * 1024
    return 0


def _huge(size: int, flags: int) -> mmap.mmap:
    try:
        return mmap.mmap(-1, size, flags=flags | _MAP_HUGETLB)
    except OSError as error:
        if error.errno != errno.ENOMEM:
            raise
        pages = size // HUGE_PAGE_BYTES
        raise UndeterminedError(
            f"--memory huge: too few free huge pages of 2 MiB; sysctl vm.nr_hugepages={pages} or more, or use thp"
        ) from error
