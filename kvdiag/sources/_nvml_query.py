"""What NVML says about the GPUs, printed as JSON: run as a program of its own, because NVML may hang on a sick GPU."""

import ctypes
import functools
import importlib
import sys
import uuid
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from kvdiag.model.gpu import Gpu, NvidiaGpus
from kvdiag.model.missing import Missing

T = TypeVar("T")

# nvmlGpuFabricState_t (nvml.h), worded as `nvidia-smi -q` does.
_STATES = {0: "Not Supported", 1: "Not Started", 2: "In Progress", 3: "Completed"}
_MOST_LINKS = 36


def query(nvml: Any) -> NvidiaGpus:
    """Return every GPU that an initialised NVML can open; what one does not support is Missing with NVML's words."""
    found = [_ask(nvml, functools.partial(_gpu, nvml, index)) for index in range(nvml.nvmlDeviceGetCount())]
    opened = [gpu for gpu in found if not isinstance(gpu, Missing)]  # one that fell off the bus hides no other
    return NvidiaGpus(
        gpus=tuple(sorted(opened, key=lambda gpu: gpu.address)),
        driver=_ask(nvml, lambda: _text(nvml.nvmlSystemGetDriverVersion())),
        origin="NVML",
    )


def address(bus_id: str) -> str:
    """Return the PCI address as sysfs writes it: "00000000:18:00.0" is 0000:18:00.0."""
    domain, _, rest = bus_id.strip().lower().partition(":")
    return f"{domain[-4:] if domain[:-4].strip('0') == '' else domain}:{rest}"


def _gpu(nvml: Any, index: int) -> Gpu:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    window = _ask(nvml, lambda: nvml.nvmlDeviceGetBAR1MemoryInfo(handle))
    memory = _ask(nvml, lambda: nvml.nvmlDeviceGetMemoryInfo(handle))
    fabric = _ask(nvml, lambda: _fabric(nvml, handle))
    return Gpu(
        address=address(_text(nvml.nvmlDeviceGetPciInfo(handle).busId)),
        name=_ask(nvml, lambda: _text(nvml.nvmlDeviceGetName(handle))),
        memory_bytes=memory if isinstance(memory, Missing) else int(memory.total),
        window_bytes=window if isinstance(window, Missing) else int(window.bar1Total),
        window_used_bytes=window if isinstance(window, Missing) else int(window.bar1Used),
        links=_ask(nvml, lambda: _links(nvml, handle)),
        fabric_state=fabric if isinstance(fabric, Missing) else _STATES.get(int(fabric.state), str(fabric.state)),
        cluster_uuid=fabric if isinstance(fabric, Missing) else str(uuid.UUID(bytes=bytes(fabric.clusterUuid))),
    )


def _fabric(nvml: Any, handle: Any) -> Any:
    info = nvml.c_nvmlGpuFabricInfo_v2_t()
    nvml.nvmlDeviceGetGpuFabricInfoV(handle, ctypes.byref(info))
    return info


def _links(nvml: Any, handle: Any) -> int:
    """Return the number of active NVLinks; NVML answers an error beyond the last link of a GPU."""
    active = 0
    for link in range(_MOST_LINKS):
        try:
            active += int(nvml.nvmlDeviceGetNvLinkState(handle, link))
        except nvml.NVMLError:
            if link == 0:
                raise
            break
    return active


def _ask(nvml: Any, call: Callable[[], T]) -> T | Missing:
    try:
        return call()
    except (nvml.NVMLError, AttributeError) as error:  # older bindings lack newer calls
        return Missing(f"NVML: {error}")


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def main() -> None:
    """Print the GPUs; exit status 3 with the reason where NVML is not there or does not answer."""
    try:
        pynvml: Any = importlib.import_module("pynvml")
    except ImportError:
        sys.exit("nvidia-ml-py is not installed")
    try:
        pynvml.nvmlInit()
        found = query(pynvml)
    except pynvml.NVMLError as error:
        sys.exit(f"NVML: {error}")
    sys.stdout.write(msgspec.json.encode(found).decode())


if __name__ == "__main__":
    main()
