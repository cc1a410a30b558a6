"""Anonymous memory in pages of a chosen kind, faulted in or not."""

import ctypes
import mmap
from typing import Literal

from kvdiag.errors import UndeterminedError

PageKind = Literal["4KiB", "thp", "hugetlb"]
HUGE_BYTES = 2 << 20
_MAP_HUGETLB = 0x40000  # <asm-generic/mman-common.h>


class Pages:
    """`address` is aligned to a huge page; UndeterminedError where there are too few explicit huge pages."""

    def __init__(self, kind: PageKind, size: int, *, touched: bool) -> None:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        if kind == "hugetlb":
            whole = -(-size // HUGE_BYTES) * HUGE_BYTES
            try:
                self._map = mmap.mmap(-1, whole, flags=flags | _MAP_HUGETLB)
            except OSError as error:
                raise UndeterminedError(
                    f"too few free huge pages of 2 MiB ({error.strerror}): {whole // HUGE_BYTES} needed, sysctl "
                    "vm.nr_hugepages"
                ) from error
        else:
            self._map = mmap.mmap(-1, size + HUGE_BYTES, flags=flags)
            self._map.madvise(mmap.MADV_HUGEPAGE if kind == "thp" else mmap.MADV_NOHUGEPAGE)
        start = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        self.address = start if kind == "hugetlb" else -(-start // HUGE_BYTES) * HUGE_BYTES
        if touched:
            first = self.address - start
            for offset in range(first, first + size, mmap.PAGESIZE):
                self._map[offset] = 1

    def close(self) -> None:
        """Give the memory back."""
        self._map.close()
