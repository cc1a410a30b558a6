"""Registration and deregistration, timed: by size, page kind, number of regions and threads; and where it ends."""

import errno
import resource
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from typing import Any, Protocol

from kvdiag.derive.cost_line import cost_line
from kvdiag.derive.intervals import metric
from kvdiag.model.probe_register import LimitRow, RegionsRow, RegisterRow, RegisterVerdict, ThreadsRow
from kvdiag_probes.libibverbs import Limits, RegistrationRefusedError
from kvdiag_probes.pages import PageKind, Pages

WIRE_SHARE = 0.05
"""Registration that adds more than this to the time on the wire does not belong into the request path: five per cent
is what a bandwidth probe's own noise hides.
"""
_THREAD_S = 0.2
_PAGE = 4096


class Registrar(Protocol):
    """What registers: a device's protection domain."""

    def register(self, address: int, size: int) -> Any: ...

    def deregister(self, region: Any) -> None: ...

    def limits(self) -> Limits: ...


def time_pages(domain: Registrar, kind: PageKind, size: int, rounds: int, *, touched: bool) -> RegisterRow:
    """Time fresh memory, `rounds` times; UndeterminedError without huge pages, RegistrationRefusedError with errno."""
    first: list[float] = []
    again: list[float] = []
    freed: list[float] = []
    for _ in range(rounds):
        with closing(Pages(kind, size, touched=touched)) as pages:
            for into in (first, again):
                started_s = time.perf_counter()
                region = domain.register(pages.address, size)
                into.append(time.perf_counter() - started_s)
                started_s = time.perf_counter()
                domain.deregister(region)
                freed.append(time.perf_counter() - started_s)
    name = f"{kind}.{'touched' if touched else 'untouched'}.{size}"
    return RegisterRow(
        pages=kind,
        touched=touched,
        size_bytes=size,
        register=metric(f"{name}.register", "seconds", "lower", first),
        again=metric(f"{name}.again", "seconds", "lower", again),
        deregister=metric(f"{name}.deregister", "seconds", "lower", freed),
    )


def time_regions(domain: Registrar, size: int, regions: int, rounds: int) -> RegionsRow:
    """Time touched base pages of `size` bytes cut into equal regions."""
    each = max(_PAGE, size // regions // _PAGE * _PAGE)
    registered, freed = [], []
    with closing(Pages("4KiB", each * regions, touched=True)) as pages:
        for _ in range(rounds):
            held: list[Any] = []
            try:
                started_s = time.perf_counter()
                for number in range(regions):
                    held.append(domain.register(pages.address + number * each, each))  # noqa: PERF401 - freed on error
                registered.append(time.perf_counter() - started_s)
            finally:
                started_s = time.perf_counter()
                for region in held:
                    domain.deregister(region)
                freed.append(time.perf_counter() - started_s)
    return RegionsRow(
        regions=regions,
        region_bytes=each,
        register=metric(f"regions.{regions}.register", "seconds", "lower", registered),
        deregister=metric(f"regions.{regions}.deregister", "seconds", "lower", freed),
    )


def time_threads(domain: Registrar, size: int, threads: int, rounds: int) -> ThreadsRow:
    """Count what so many threads register and deregister side by side in a fixed time."""
    rates = []
    with ExitStack() as stack:
        pages = [stack.enter_context(closing(Pages("4KiB", size, touched=True))) for _ in range(threads)]
        for _ in range(rounds):
            counts = [0] * threads
            failures: list[RegistrationRefusedError] = []
            stop = time.perf_counter() + _THREAD_S

            def work(number: int, counts: list[int], failures: list[RegistrationRefusedError], stop: float) -> None:
                try:
                    while time.perf_counter() < stop:
                        domain.deregister(domain.register(pages[number].address, size))
                        counts[number] += 1
                except RegistrationRefusedError as error:
                    failures.append(error)

            started_s = time.perf_counter()
            workers = [threading.Thread(target=work, args=(n, counts, failures, stop)) for n in range(threads)]
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join()
            if failures:
                raise failures[0]
            rates.append(sum(counts) / (time.perf_counter() - started_s))
    return ThreadsRow(
        threads=threads,
        size_bytes=size,
        per_second=metric(f"threads.{threads}.per_second", "count", "higher", rates),
    )


def reach_limits(
    domain: Registrar,
    most_bytes: int,
    most_regions: int,
    memlock: int | None = None,
) -> tuple[LimitRow, ...]:
    """Register until something refuses or a bound of the probe is met, then free everything.

    One buffer is registered again and again: each time counts against memlock (the kernel accounts pinned pages per
    registration) without costing memory. `memlock` is the process's limit in bytes, None for none.
    """
    limits = domain.limits()
    chunk = min(1 << 20, most_bytes)
    pinned, refusal = _pile_up(domain, chunk, most_bytes // chunk)
    reached, fine = pinned * chunk, 0
    if refusal == errno.ENOMEM:
        # The last piece is approached in base pages.
        with closing(Pages("4KiB", chunk, touched=True)) as pages:
            held = [domain.register(pages.address, chunk) for _ in range(pinned)]
            try:
                while True:
                    held.append(domain.register(pages.address, _PAGE))
                    fine += 1
            except RegistrationRefusedError:
                reached += fine * _PAGE
            finally:
                for region in held:
                    domain.deregister(region)
    count, count_refusal = _pile_up(domain, _PAGE, most_regions)
    regions_refused = count_refusal is not None and not (memlock is not None and count * _PAGE >= memlock // 2)
    return (
        _limit("memlock", memlock, reached, refusal if memlock is not None else None),
        _limit("max_mr", limits.max_mr, count, count_refusal if regions_refused else None),
        _limit("max_mr_size", limits.max_mr_size, min(chunk, reached) or 0, None),
    )


def soft_memlock() -> int | None:
    """Return RLIMIT_MEMLOCK in bytes, or None where there is none or the capability IPC_LOCK lifts it."""
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if soft == resource.RLIM_INFINITY or _has_ipc_lock():
        return None
    return soft


def judge_path(
    rows: Sequence[RegisterRow], kv_bytes: int, link_bytes_per_second: float | None, budget_s: float | None
) -> RegisterVerdict:
    """Extrapolate the cost of `kv_bytes` per request, and say whether it may be paid in the request's path.

    It may where it stays within the budget (seconds), or without one adds at most WIRE_SHARE to the wire time.
    """
    base = [row for row in rows if row.pages == "4KiB"]
    touched = [row for row in base if row.touched] or base or list(rows)
    fixed, slope = cost_line([(row.size_bytes, row.register.value + row.deregister.value) for row in touched])
    kv_s = fixed + slope * kv_bytes
    cold = [(row.size_bytes, row.register.value + row.deregister.value) for row in base if not row.touched]
    cold_s: float | None = None
    if cold:
        cold_fixed, cold_slope = cost_line(cold)
        cold_s = cold_fixed + cold_slope * kv_bytes
    share = None if link_bytes_per_second is None else kv_s * link_bytes_per_second / kv_bytes
    figures = f"{kv_bytes} bytes cost {kv_s * 1e3:.3f} ms to register and deregister"
    if cold_s is not None:
        figures += f" ({cold_s * 1e3:.3f} ms where the pages are not there yet)"
    allowed = kv_s <= budget_s if budget_s is not None else share is None or share <= WIRE_SHARE
    bound = f"the budget is {budget_s * 1e3:g} ms" if budget_s is not None else f"at most {WIRE_SHARE:.0%} is no harm"
    if share is not None:
        figures += f", {share:.1%} of its time on the link"
    advice = "" if allowed else ": registration may not be in the request path; register the KV pool once at start"
    return RegisterVerdict(
        kv_bytes=kv_bytes,
        fixed_s=fixed,
        seconds_per_byte=slope,
        kv_s=kv_s,
        kv_untouched_s=cold_s,
        share_of_wire=share,
        on_path="allowed" if allowed else "not_allowed",
        reason=f"{figures}; {bound}{advice}",
    )


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


def _limit(name: Any, allowed: int | None, reached: int, refusal: int | None) -> LimitRow:
    return LimitRow(
        name=name,
        allowed=allowed,
        reached=reached,
        status="not_reached" if refusal is None else "reached",
        refusal=None if refusal is None else errno.errorcode.get(refusal, str(refusal)),
    )


def _has_ipc_lock() -> bool:
    with open("/proc/self/status") as file:  # noqa: PTH123 - one line of a small file
        effective = next((line.split()[1] for line in file if line.startswith("CapEff:")), "0")
    return bool(int(effective, 16) >> 14 & 1)  # CAP_IPC_LOCK of <linux/capability.h>
