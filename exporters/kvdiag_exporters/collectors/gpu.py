"""GPUs through NVML (nvidia-ml-py) or amdsmi: memory, the window that NICs reach, PCIe and NVLink traffic, fabric."""

import ctypes
import importlib
import threading
from collections.abc import Iterator
from typing import Any, Protocol

from kvdiag.sources._nvml_query import address
from kvdiag_exporters.catalog import Metric, Sample
from kvdiag_exporters.collectors.base import Setup

_GPU = ("node", "gpu")


def _gauge(name: str, help_: str, unit: str = "", labels: tuple[str, ...] = _GPU) -> Metric:
    return Metric(name=f"kvdiag_gpu_{name}", kind="gauge", unit=unit, labels=labels, help=help_)


MEMORY = _gauge("memory_bytes", "Memory of the GPU, by its PCI address.", "bytes")
USED = _gauge("memory_used_bytes", "Memory of the GPU in use.", "bytes")
WINDOW = _gauge(
    "window_bytes", "What of the memory PCI devices reach at once (NVIDIA: BAR1, AMD: visible VRAM).", "bytes"
)
WINDOW_USED = _gauge("window_used_bytes", "How much of that window is taken, registered memory included.", "bytes")
PCIE = _gauge(
    "pcie_bytes_per_second",
    "PCIe traffic over the last 20 ms, by direction: transmit, receive.",
    labels=(*_GPU, "direction"),
)
LINK_BYTES = Metric(
    name="kvdiag_gpu_nvlink_bytes_total",
    kind="counter",
    unit="bytes",
    labels=(*_GPU, "direction"),
    help="Data over all NVLinks of the GPU, by direction: transmit, receive.",
)
LINKS = _gauge("nvlinks_active", "NVLinks in use.")
FABRIC = _gauge(
    "fabric_state",
    "1 for the state of the GPU in its NVLink fabric: not_supported, not_started, in_progress, completed.",
    labels=(*_GPU, "state"),
)

METRICS = (MEMORY, USED, WINDOW, WINDOW_USED, PCIE, LINK_BYTES, LINKS, FABRIC)

READ_EVERY_S, STALE_S, FIRST_S = 5.0, 30.0, 2.0
"""GPUs are read this often, forgotten after so long without an answer, and waited for at the first collection only."""

_STATES = {0: "not_supported", 1: "not_started", 2: "in_progress", 3: "completed"}
"""nvmlGpuFabricState_t (nvml.h)."""
_ALL_LINKS = 0xFFFFFFFF
"""Scope of a field value that stands for all links together (nvml.h, NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX)."""
_MOST_LINKS = 36


class _Library(Protocol):
    def samples(self, node: str) -> Iterator[Sample]: ...


class Nvidia:
    """An initialised NVML; what a GPU does not support has no sample."""

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        nvml.nvmlInit()

    def samples(self, node: str) -> Iterator[Sample]:
        nvml = self._nvml
        for index in range(nvml.nvmlDeviceGetCount()):
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            bus = nvml.nvmlDeviceGetPciInfo(handle).busId
            gpu = address(bus.decode() if isinstance(bus, bytes) else bus)
            yield from self._gpu(handle, (node, gpu))

    def _gpu(self, handle: Any, labels: tuple[str, str]) -> Iterator[Sample]:
        nvml = self._nvml
        memory = self._ask("nvmlDeviceGetMemoryInfo", handle)
        if memory is not None:
            yield MEMORY.sample(float(memory.total), *labels)
            yield USED.sample(float(memory.used), *labels)
        window = self._ask("nvmlDeviceGetBAR1MemoryInfo", handle)
        if window is not None:
            yield WINDOW.sample(float(window.bar1Total), *labels)
            yield WINDOW_USED.sample(float(window.bar1Used), *labels)
        for direction, counter in (("transmit", "NVML_PCIE_UTIL_TX_BYTES"), ("receive", "NVML_PCIE_UTIL_RX_BYTES")):
            rate = self._ask("nvmlDeviceGetPcieThroughput", handle, getattr(nvml, counter))
            if rate is not None:
                yield PCIE.sample(rate * 1e3, *labels, direction)  # NVML tells KB/s
        yield from self._links(handle, labels)
        if hasattr(nvml, "c_nvmlGpuFabricInfo_v2_t"):
            info = nvml.c_nvmlGpuFabricInfo_v2_t()
            try:
                nvml.nvmlDeviceGetGpuFabricInfoV(handle, ctypes.byref(info))
            except (nvml.NVMLError, AttributeError):  # not supported by this GPU, or by older bindings
                return
            yield FABRIC.sample(1.0, *labels, _STATES.get(int(info.state), f"state_{int(info.state)}"))

    def _links(self, handle: Any, labels: tuple[str, str]) -> Iterator[Sample]:
        nvml = self._nvml
        states = []
        for link in range(_MOST_LINKS):
            state = self._ask("nvmlDeviceGetNvLinkState", handle, link)
            if state is None:  # beyond the last link
                break
            states.append(int(state))
        if not states:
            return
        yield LINKS.sample(float(sum(states)), *labels)
        for direction, name in (("transmit", "TX"), ("receive", "RX")):
            field = getattr(nvml, f"NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_{name}", None)
            if field is None:
                continue
            told = self._ask("nvmlDeviceGetFieldValues", handle, [(field, _ALL_LINKS)])
            if told and told[0].nvmlReturn == 0:
                yield LINK_BYTES.sample(float(told[0].value.ullVal) * 1024, *labels, direction)  # NVML tells KiB

    def _ask(self, call: str, *arguments: Any) -> Any:
        """Return NVML's answer, None where this GPU or these bindings have none."""
        try:
            return getattr(self._nvml, call)(*arguments)
        except (self._nvml.NVMLError, AttributeError):
            return None


class Amd:
    """An initialised amdsmi."""

    def __init__(self, amdsmi: Any) -> None:
        self._amdsmi = amdsmi
        amdsmi.amdsmi_init()

    def samples(self, node: str) -> Iterator[Sample]:
        amdsmi = self._amdsmi
        for handle in amdsmi.amdsmi_get_processor_handles():
            labels = (node, str(amdsmi.amdsmi_get_gpu_device_bdf(handle)).lower())
            for memory, total, used in (("VRAM", MEMORY, USED), ("VIS_VRAM", WINDOW, WINDOW_USED)):
                for metric, call in (
                    (total, "amdsmi_get_gpu_memory_total"),
                    (used, "amdsmi_get_gpu_memory_usage"),
                ):
                    value = self._ask(call, handle, memory)
                    if value is not None:
                        yield metric.sample(value, *labels)

    def _ask(self, call: str, handle: Any, memory: str) -> float | None:
        try:
            kind = getattr(self._amdsmi.AmdSmiMemoryType, memory)
            return float(getattr(self._amdsmi, call)(handle, kind))
        except (self._amdsmi.AmdSmiException, AttributeError, TypeError, ValueError):
            return None


class GpuCollector:
    """Whichever library initialises; a host without GPUs or libraries has no series, and that is no fault.

    The libraries are asked in a thread of their own: one PCIe figure takes 20 ms, sixteen of them are too long for a
    scrape, and NVML may hang on a sick GPU.
    """

    def __init__(self, setup: Setup, libraries: dict[str, Any]) -> None:
        self._setup = setup
        self._libraries = libraries
        self._ready: dict[str, _Library] = {}
        self._thread: threading.Thread | None = None
        self._asked_s = float("-inf")
        self._told: tuple[float, list[Sample], tuple[str, ...]] | None = None
        self.missing: tuple[str, ...] = ()

    def collect(self) -> Iterator[Sample]:
        """Yield what was last read of every GPU, nothing once that is older than STALE_S; begin to read again."""
        now_s = self._setup.clock.monotonic_s()
        if now_s - self._asked_s >= READ_EVERY_S and (self._thread is None or not self._thread.is_alive()):
            self._asked_s = now_s
            self._thread = threading.Thread(target=self.refresh, name="gpu-libraries", daemon=True)
            self._thread.start()
            if self._told is None:
                self._thread.join(FIRST_S)
        if self._told is None or now_s - self._told[0] > STALE_S:
            self.missing = (f"{', '.join(self._libraries)}: no answer for {STALE_S if self._told else FIRST_S:g} s",)
            return
        _, samples, self.missing = self._told
        yield from samples

    def refresh(self) -> None:
        """Read every GPU of every library that works; one that fails is tried again the next time."""
        found: list[Sample] = []
        missing: list[str] = []
        for name, module in self._libraries.items():
            try:
                if name not in self._ready:
                    self._ready[name] = Nvidia(module) if name == "NVML" else Amd(module)
                found += self._ready[name].samples(self._setup.node)
            except Exception as error:  # the libraries raise classes of their own
                self._ready.pop(name, None)
                missing.append(f"{name}: {error}")
        self._told = (self._setup.clock.monotonic_s(), found, tuple(missing))


def _load(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except (ImportError, OSError, KeyError, SystemExit):  # amdsmi looks for its library while it is imported
        return None


def create(setup: Setup) -> GpuCollector | None:
    if not setup.context.live:
        return None
    drivers = {"NVML": ("/proc/driver/nvidia/version", "pynvml"), "amdsmi": ("/sys/module/amdgpu", "amdsmi")}
    found = {
        name: module
        for name, (sign, library) in drivers.items()
        if setup.tree.exists(sign) and (module := _load(library)) is not None
    }
    return GpuCollector(setup, found) if found else None
