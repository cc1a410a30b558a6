"""Where registration ends: registered until something refuses, then freed; what refused is told apart."""

import errno
import resource
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, Literal

from kvdiag.model.probe_register import LimitRow
from kvdiag_probes.libibverbs import RegistrationRefusedError
from kvdiag_probes.pages import Pages
from kvdiag_probes.registration import Registrar

_PAGE = 4096
_CHUNK = 1 << 20
_MEMORY_SHARE = 4
"""A single region takes at most this part of the memory that is available: a probe may not push others out."""
_CAP_IPC_LOCK = 14  # <linux/capability.h>


def reach_limits(
    domain: Registrar,
    most_bytes: int,
    most_regions: int,
    memlock: int | None = None,
    available: Callable[[], int] | None = None,
) -> tuple[LimitRow, ...]:
    """Register until something refuses or a bound of the probe is met, then free everything: memlock, max_mr,
    max_mr_size.

    For the first two one buffer is registered again and again: each time counts against memlock (the kernel accounts
    pinned pages per registration) without costing memory. `memlock` is the process's limit in bytes, None for none;
    `available` returns the host's available memory in bytes.
    """
    limits = domain.limits()
    chunk = min(_CHUNK, most_bytes)
    pinned, refusal = _pile_up(domain, chunk, most_bytes // chunk)
    reached = pinned * chunk
    if refusal == errno.ENOMEM:
        reached += _approach(domain, chunk, pinned)
    count, count_refusal = _pile_up(domain, _PAGE, most_regions)
    by_memlock = memlock is not None and count * _PAGE >= memlock // 2
    return (
        _limit("memlock", memlock, reached, refusal if memlock is not None else None),
        _limit("max_mr", limits.max_mr, count, None if by_memlock else count_refusal),
        _largest(domain, limits.max_mr_size, min(most_bytes, (available or available_memory)() // _MEMORY_SHARE)),
    )


def soft_memlock() -> int | None:
    """Return RLIMIT_MEMLOCK in bytes, or None where there is none or the capability IPC_LOCK lifts it."""
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if soft == resource.RLIM_INFINITY or _has_ipc_lock():
        return None
    return soft


def available_memory(meminfo: Path = Path("/proc/meminfo")) -> int:
    """Return the bytes of memory that the kernel deems available."""
    fields = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
    return int(fields["MemAvailable"].split()[0]) << 10


def _largest(domain: Registrar, allowed: int, most: int) -> LimitRow:
    """Register one region of doubled sizes, the device's largest and one page more where the bound lies beyond it."""
    sizes = [size for power in range(12, 48) if (size := 1 << power) <= min(most, allowed)]
    if allowed < most:
        sizes = sorted({*sizes, allowed, allowed + _PAGE})
    reached = 0
    with closing(Pages("4KiB", max(sizes, default=_PAGE), touched=False)) as pages:
        for size in sizes:
            try:
                domain.deregister(domain.register(pages.address, size))
            except RegistrationRefusedError as error:
                if size > allowed:
                    return _limit("max_mr_size", allowed, reached, error.code)
                name = errno.errorcode.get(error.code, str(error.code))
                reason = f"{size} bytes in one region were refused with {name}, by something other than max_mr_size"
                return _limit("max_mr_size", allowed, reached, None, reason)
            reached = size
    reason = f"the probe stops at {reached} bytes (--limit-bytes, a quarter of the available memory)"
    if reached > allowed:
        reason = "the device took more than it says it allows"
    return _limit("max_mr_size", allowed, reached, None, reason)


def _approach(domain: Registrar, chunk: int, pinned: int) -> int:
    """Pin so many chunks again, and approach the limit in base pages; return the bytes of those pages."""
    pages_held = 0
    with closing(Pages("4KiB", chunk, touched=True)) as pages:
        held: list[Any] = []
        try:
            for _ in range(pinned):
                held.append(domain.register(pages.address, chunk))  # noqa: PERF401 - freed on error
            while pages_held * _PAGE < chunk:
                held.append(domain.register(pages.address, _PAGE))
                pages_held += 1
        except RegistrationRefusedError:
            return pages_held * _PAGE
        finally:
            for region in held:
                domain.deregister(region)
    return pages_held * _PAGE


def _pile_up(domain: Registrar, size: int, most: int) -> tuple[int, int | None]:
    """Register one buffer up to `most` times; return how often it went, and the errno of the refusal."""
    held: list[Any] = []
    with closing(Pages("4KiB", size, touched=True)) as pages:
        try:
            while len(held) < most:
                held.append(domain.register(pages.address, size))
        except RegistrationRefusedError as error:
            return len(held), error.code
        finally:
            for region in held:
                domain.deregister(region)
    return most, None


def _limit(
    name: Literal["memlock", "max_mr", "max_mr_size"],
    allowed: int | None,
    reached: int,
    refusal: int | None,
    reason: str | None = None,
) -> LimitRow:
    return LimitRow(
        name=name,
        allowed=allowed,
        reached=reached,
        status="not_reached" if refusal is None else "reached",
        refusal=None if refusal is None else errno.errorcode.get(refusal, str(refusal)),
        reason=reason,
    )


def _has_ipc_lock() -> bool:
    lines = Path("/proc/self/status").read_text().splitlines()
    effective = next((line.split()[1] for line in lines if line.startswith("CapEff:")), "0")
    return bool(int(effective, 16) >> _CAP_IPC_LOCK & 1)
