"""`kvdiag probe register` from the choice of device to the verdict; what is refused is named, the rest goes on."""

import itertools
import os
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, suppress
from typing import Any

from kvdiag.derive.cost_line import cost_line
from kvdiag.errors import UndeterminedError, UsageError
from kvdiag.model.missing import Missing
from kvdiag.model.probe_judgement import Metric
from kvdiag.model.probe_register import (
    DevicesRow,
    LimitRow,
    RegionsRow,
    RegisterRow,
    RegisterSettings,
    RegisterVerdict,
    ThreadsRow,
)
from kvdiag_probes import gpu_window, registration, tracing
from kvdiag_probes.libibverbs import Domain, RegistrationRefusedError
from kvdiag_probes.pages import PageKind
from kvdiag_probes.progress import bar
from kvdiag_probes.rdma_path import read_devices
from kvdiag_probes.registration_limits import reach_limits, soft_memlock
from kvdiag_probes.sizes import format_size

PAGES: tuple[PageKind, ...] = ("4KiB", "thp", "hugetlb")


class Registration:
    """What was measured so far; filled in by `measure`."""

    def __init__(self) -> None:
        self.rows: list[RegisterRow] = []
        self.regions: list[RegionsRow] = []
        self.threads: list[ThreadsRow] = []
        self.devices: list[DevicesRow] = []
        self.limits: tuple[LimitRow, ...] = ()
        self.missing: list[str] = []


def choose_devices(names: str | None) -> tuple[tuple[str, ...], float | None]:
    """Return devices and the first one's fastest port's bytes per second; all with an ACTIVE port where none is named.

    `names` are separated by commas. Without any ACTIVE port the first device is taken: registering needs no link.
    """
    devices = read_devices().devices
    if not devices:
        raise UndeterminedError("no RDMA device on this host: nothing registers memory; load the NIC's RDMA driver")
    known = {device.name: device for device in devices}
    if names is None:
        active = [device for device in devices if any(port.state == "ACTIVE" for port in device.ports)]
        chosen = active or list(devices[:1])
    else:
        wanted = [name.strip() for name in names.split(",")]
        for name in wanted:
            if name not in known:
                raise UsageError(f"--device {name}: there is none; there are {', '.join(known)}")
        if len(set(wanted)) != len(wanted):
            raise UsageError(f"--device {names}: give each device once")
        chosen = [known[name] for name in wanted]
    rates = [port.rate_gbps for port in chosen[0].ports if not isinstance(port.rate_gbps, Missing)]
    return tuple(device.name for device in chosen), max(rates) * 1e9 / 8 if rates else None


def measure(
    settings: RegisterSettings,
    limit_bytes: int,
    limit_regions: int,
    progress: Callable[[str], None],
    open_domain: Callable[[str], AbstractContextManager[Any]] = Domain,
    open_window: Callable[[str], AbstractContextManager[gpu_window.Window]] = gpu_window.open_window,
    found: Registration | None = None,
) -> Registration:
    """Measure everything; UndeterminedError where not one registration is possible, with the reason of each.

    `found` keeps what was measured before the user stops the probe.
    """
    found = Registration() if found is None else found
    largest, rounds = max(settings.sizes), settings.rounds

    kinds = [kind for kind in PAGES if kind in settings.pages]
    steps = len(settings.sizes) * (len(kinds) + ("4KiB" in kinds)) + 1
    steps += len(settings.regions) + len(settings.threads) + len(settings.devices)
    told = itertools.count()

    def tell(what: str) -> None:
        last = found.rows[-1] if found.rows else None
        progress(bar(next(told), steps, what, last.size_bytes / last.register.value if last else None))

    def attempt(what: str, call: Callable[[], None]) -> None:
        tell(what)
        try:
            with tracing.span(tracing.STAGES, what):
                call()
        except RegistrationRefusedError as error:
            memlock = soft_memlock()
            hint = "" if memlock is None else f" (memlock limit {memlock} bytes: ulimit -l, LimitMEMLOCK=)"
            found.missing.append(f"{what}: refused: {os.strerror(error.code)}{hint}")
        except UndeterminedError as error:
            found.missing.append(f"{what}: {error}")

    with open_domain(settings.device) as domain:
        with suppress(RegistrationRefusedError):  # whatever refuses a page is named below
            registration.warm_up(domain)
        for kind in kinds:
            for size in settings.sizes:
                for touched in (True, False) if kind == "4KiB" else (True,):
                    attempt(
                        f"{format_size(size)} in {kind} pages, {'touched' if touched else 'untouched'}",
                        lambda kind=kind, size=size, touched=touched: found.rows.append(  # type: ignore[misc]
                            registration.time_pages(domain, kind, size, rounds, touched=touched)
                        ),
                    )
        for count in settings.regions:
            attempt(
                f"{format_size(largest)} in {count} regions",
                lambda count=count: found.regions.append(  # type: ignore[misc]
                    registration.time_regions(domain, largest, count, rounds)
                ),
            )
        size = min(largest, 1 << 20)
        for count in settings.threads:
            attempt(
                f"{count} threads",
                lambda count=count: found.threads.append(  # type: ignore[misc]
                    registration.time_threads(domain, size, count, rounds)
                ),
            )
        for count in range(1, len(settings.devices) + 1):
            attempt(
                f"{format_size(size)} on {count} devices",
                lambda count=count: found.devices.append(  # type: ignore[misc]
                    _time_devices(domain, settings.devices[1:count], size, rounds, open_domain)
                ),
            )
        tell("limits")
        with tracing.span(tracing.STAGES, "limits"):
            found.limits = reach_limits(domain, limit_bytes, limit_regions, soft_memlock())
        found.limits += (_reach_window(domain, settings.device, limit_bytes, open_window),)
    if not found.rows:
        raise UndeterminedError(f"{settings.device}: nothing could be registered: {'; '.join(found.missing)}")
    return found


def _time_devices(
    first: registration.Registrar,
    others: tuple[str, ...],
    size: int,
    rounds: int,
    open_domain: Callable[[str], AbstractContextManager[Any]],
) -> DevicesRow:
    with ExitStack() as stack:
        domains = [first, *(stack.enter_context(open_domain(name)) for name in others)]
        return registration.time_devices(domains, size, rounds)


def _reach_window(
    domain: Any, device: str, limit_bytes: int, open_window: Callable[[str], AbstractContextManager[gpu_window.Window]]
) -> LimitRow:
    try:
        with open_window(device) as window:
            return gpu_window.reach_window(domain, window, limit_bytes)
    except UndeterminedError as error:
        return gpu_window.not_observable(str(error))


def kv_metric(rows: list[RegisterRow], verdict: RegisterVerdict) -> Metric:
    """Return the verdict's cost as a metric whose interval comes from the medians' intervals."""
    base = [row for row in rows if row.pages == "4KiB" and row.touched]
    low: float | None = None
    high: float | None = None
    lows = [(row.size_bytes, (row.register.low or 0) + (row.deregister.low or 0)) for row in base]
    highs = [(row.size_bytes, (row.register.high or 0) + (row.deregister.high or 0)) for row in base]
    if base and all(seconds for _, seconds in (*lows, *highs)):
        bounds = [fixed + slope * verdict.kv_bytes for fixed, slope in map(cost_line, (lows, highs))]
        low, high = min(verdict.kv_s, *bounds), max(verdict.kv_s, *bounds)
    return Metric(
        name="kv.register_and_deregister",
        unit="seconds",
        better="lower",
        value=verdict.kv_s,
        low=low,
        high=high,
        samples=min((row.register.samples for row in base), default=0),
    )


def kv_rate(cost: Metric, kv_bytes: int) -> Metric:
    """Return the bytes per second that `kv_metric`'s cost is for that many bytes."""
    return Metric(
        name="kv.registered",
        unit="bytes_per_second",
        better="higher",
        value=kv_bytes / cost.value,
        low=kv_bytes / cost.high if cost.high else None,
        high=kv_bytes / cost.low if cost.low else None,
        samples=cost.samples,
    )
