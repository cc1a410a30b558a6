"""GPUs through NVML (nvidia-ml-py) or amdsmi: memory, the window that NICs reach, PCIe and NVLink traffic, fabric."""

import ctypes
import importlib
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
            if self._ask("nvmlDeviceGetGpuFabricInfoV", handle, ctypes.byref(info)) is not None:
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
    """Whichever library initialises; a host without GPUs or libraries has no series, and that is no fault."""

    def __init__(self, setup: Setup, libraries: dict[str, Any]) -> None:
        self._setup = setup
        self._libraries = libraries
        self._ready: dict[str, _Library] = {}
        self.missing: tuple[str, ...] = ()

    def collect(self) -> Iterator[Sample]:
        """Yield every GPU of every library that works; one that fails is tried again at the next collection."""
        missing: list[str] = []
        for name, module in self._libraries.items():
            try:
                if name not in self._ready:
                    self._ready[name] = Nvidia(module) if name == "NVML" else Amd(module)
                yield from list(self._ready[name].samples(self._setup.node))
            except Exception as error:  # the libraries raise classes of their own
                self._ready.pop(name, None)
                missing.append(f"{name}: {error}")
        self.missing = tuple(missing)


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
