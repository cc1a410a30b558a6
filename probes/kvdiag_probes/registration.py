"""Registration and deregistration, timed: by size, page kind, number of regions, threads and devices."""

import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from typing import Any, Literal, Protocol

from kvdiag.derive.cost_line import cost_line
from kvdiag.derive.intervals import metric
from kvdiag.model.probe_register import DevicesRow, RegionsRow, RegisterRow, RegisterVerdict, ThreadsRow
from kvdiag_probes import tracing
from kvdiag_probes.budget import current
from kvdiag_probes.libibverbs import Limits, RegistrationRefusedError
from kvdiag_probes.pages import PageKind, Pages

WIRE_SHARE = 0.05
"""Registration that adds more than this to the time on the wire does not belong into the request path: five per cent
is what a bandwidth probe's own noise hides.
"""
_THREAD_S = 0.2
_PAGE = 4096
_WARM_UPS = 3


class Registrar(Protocol):
    """What registers: a device's protection domain."""

    def register(self, address: int, size: int) -> Any: ...

    def deregister(self, region: Any) -> None: ...

    def limits(self) -> Limits: ...


def warm_up(domain: Registrar) -> None:
    """Register a page a few times untimed: the first calls of a process load and allocate what all others use."""
    with closing(Pages("4KiB", _PAGE, touched=True)) as pages:
        for _ in range(_WARM_UPS):
            domain.deregister(domain.register(pages.address, _PAGE))


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
                registered_s = time.perf_counter()
                domain.deregister(region)
                freed.append(time.perf_counter() - registered_s)
                into.append(registered_s - started_s)
                tracing.add(tracing.OPERATIONS, "register", started_s, into[-1], bytes=size)
                tracing.rate(tracing.THROUGHPUT, started_s, into[-1], size)
                tracing.add(tracing.OPERATIONS, "deregister", registered_s, freed[-1], bytes=size)
                current().spend(size)
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
                tracing.add(tracing.OPERATIONS, f"register {regions} regions", started_s, registered[-1], bytes=size)
            finally:
                started_s = time.perf_counter()
                for region in held:
                    domain.deregister(region)
                freed.append(time.perf_counter() - started_s)
            current().spend(each * regions)
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
            current().spend(sum(counts) * size)
    return ThreadsRow(
        threads=threads,
        size_bytes=size,
        per_second=metric(f"threads.{threads}.per_second", "count", "higher", rates),
    )


def time_devices(domains: Sequence[Registrar], size: int, rounds: int) -> DevicesRow:
    """Time the same touched base pages on every device, one after another and in a thread each, by turns."""
    orders: dict[bool, list[float]] = {False: [], True: []}
    freed = []
    with closing(Pages("4KiB", size, touched=True)) as pages, ThreadPoolExecutor(len(domains)) as pool:
        started = threading.Barrier(len(domains))
        list(pool.map(lambda _: started.wait(), domains))  # starting a thread is not registering
        for _ in range(rounds):
            for together in (False, True):
                held: list[tuple[Registrar, Any]] = []

                def one(domain: Registrar, held: list[tuple[Registrar, Any]] = held) -> None:
                    held.append((domain, domain.register(pages.address, size)))

                started_s = time.perf_counter()
                try:
                    list((pool.map if together else map)(one, domains))
                    orders[together].append(time.perf_counter() - started_s)
                    name = f"register on {len(domains)} devices {'side by side' if together else 'in turn'}"
                    tracing.add(tracing.OPERATIONS, name, started_s, orders[together][-1], bytes=size)
                finally:
                    started_s = time.perf_counter()
                    for domain, region in held:
                        domain.deregister(region)
                    freed.append(time.perf_counter() - started_s)
                current().spend(len(held) * size)
    name = f"devices.{len(domains)}"
    return DevicesRow(
        devices=len(domains),
        size_bytes=size,
        one_after_another=metric(f"{name}.one_after_another", "seconds", "lower", orders[False]),
        side_by_side=metric(f"{name}.side_by_side", "seconds", "lower", orders[True]),
        deregister=metric(f"{name}.deregister", "seconds", "lower", freed),
    )


def judge_path(
    rows: Sequence[RegisterRow], kv_bytes: int, link_bytes_per_second: float | None, budget_s: float | None
) -> RegisterVerdict:
    """Extrapolate the cost of `kv_bytes` per request, and say whether it may be paid in the request's path.

    It may where it stays within the budget (seconds), or without one adds at most WIRE_SHARE to the wire time;
    undetermined with neither a budget nor the link's rate.
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
    if share is not None:
        figures += f", {share:.1%} of its time on the link"
    on_path: Literal["allowed", "not_allowed", "undetermined"]
    if budget_s is not None:
        on_path, bound = _allowed(kv_s <= budget_s), f"the budget is {budget_s * 1e3:g} ms"
    elif share is not None:
        on_path, bound = _allowed(share <= WIRE_SHARE), f"at most {WIRE_SHARE:.0%} is no harm"
    else:
        on_path, bound = "undetermined", "the link's rate is not known: give --budget-ms"
    advice = {
        "allowed": "",
        "not_allowed": ": registration may not be in the request path; register the KV pool once at start",
        "undetermined": "",
    }[on_path]
    return RegisterVerdict(
        kv_bytes=kv_bytes,
        fixed_s=fixed,
        seconds_per_byte=slope,
        kv_s=kv_s,
        kv_untouched_s=cold_s,
        share_of_wire=share,
        on_path=on_path,
        reason=f"{figures}; {bound}{advice}",
    )


def _allowed(is_allowed: bool) -> Literal["allowed", "not_allowed"]:
    return "allowed" if is_allowed else "not_allowed"
