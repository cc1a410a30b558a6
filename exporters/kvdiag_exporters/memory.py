"""Giving memory back to the system: what one large request needed is not kept for ever.

glibc keeps a heap for each few threads, up to eight for each core, and after the first large block that was freed it
takes blocks up to that size from those heaps (mallopt(3), M_MMAP_THRESHOLD), whose freed memory mostly stays. A few
exports of 16 MiB in threads of their own left 250 MiB behind.
"""

import ctypes
import logging

_log = logging.getLogger(__name__)
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8  # malloc.h
LARGE_BYTES = 256 << 10
"""Blocks from this size on are mapped alone, and are gone when they are freed."""
HEAPS = 2


def give_back_freed_memory() -> bool:
    """Set glibc's allocator so, for this process; return whether that was possible: other C libraries have no such."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        _log.debug("this C library has no mallopt")
        return False
    wanted = {_M_MMAP_THRESHOLD: LARGE_BYTES, _M_TRIM_THRESHOLD: LARGE_BYTES, _M_ARENA_MAX: HEAPS}
    return all(mallopt(option, value) == 1 for option, value in wanted.items())
