# ruff: noqa: N802, N818  (the libraries name them so)
"""GPUs by fakes shaped like the libraries' own answers; needs no GPU."""

import ctypes
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kvdiag.sources.base import Context
from kvdiag_exporters.collectors.base import Setup
from kvdiag_exporters.collectors.gpu import READ_EVERY_S, STALE_S, GpuCollector, create
from tests.exporters.host import StillClock

GPU = "0000:18:00.0"


class NVMLError(Exception):
    pass


class Nvml(SimpleNamespace):
    """Answers as nvidia-ml-py does for an H200 on NVSwitch; `unsupported` calls raise, as on GPUs without them."""

    NVML_PCIE_UTIL_TX_BYTES, NVML_PCIE_UTIL_RX_BYTES = 0, 1
    NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX = 138, 139
    NVMLError = NVMLError

    def __init__(self, unsupported: tuple[str, ...] = (), links: int = 18) -> None:
        super().__init__(unsupported=unsupported, links=links, dead=False, inits=0)

    def nvmlInit(self) -> None:
        self.inits += 1

    def nvmlDeviceGetCount(self) -> int:
        if self.dead:
            raise NVMLError("GPU is lost")
        return 1

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetPciInfo(self, handle: int) -> Any:
        return SimpleNamespace(busId=b"00000000:18:00.0")

    def _allowed(self, name: str) -> None:
        if name in self.unsupported:
            raise NVMLError("Not Supported")

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:
        self._allowed("memory")
        return SimpleNamespace(total=141 << 30, used=100 << 30)

    def nvmlDeviceGetBAR1MemoryInfo(self, handle: int) -> Any:
        self._allowed("bar1")
        return SimpleNamespace(bar1Total=256 << 30, bar1Used=3 << 30)

    def nvmlDeviceGetPcieThroughput(self, handle: int, counter: int) -> int:
        self._allowed("pcie")
        return (7000, 9000)[counter]

    def nvmlDeviceGetNvLinkState(self, handle: int, link: int) -> int:
        if link >= self.links:
            raise NVMLError("Invalid Argument")
        return int(link != 2)

    def nvmlDeviceGetFieldValues(self, handle: int, fields: list[tuple[int, int]]) -> Any:
        ((field, scope),) = fields
        assert scope == 0xFFFFFFFF
        return [SimpleNamespace(nvmlReturn=0, value=SimpleNamespace(ullVal={138: 10, 139: 20}[field]))]

    class c_nvmlGpuFabricInfo_v2_t(ctypes.Structure):  # noqa: N801
        _fields_ = (("version", ctypes.c_uint), ("state", ctypes.c_ubyte))

    def nvmlDeviceGetGpuFabricInfoV(self, handle: int, info: Any) -> None:
        self._allowed("fabric")
        info._obj.state = 3  # what the pointer leads to


class AmdSmi(SimpleNamespace):
    class AmdSmiException(Exception):
        pass

    AmdSmiMemoryType = SimpleNamespace(VRAM="vram", VIS_VRAM="vis")

    def amdsmi_init(self) -> None:
        return

    def amdsmi_get_processor_handles(self) -> list[int]:
        return [0]

    def amdsmi_get_gpu_device_bdf(self, handle: int) -> str:
        return "0000:0C:00.0"

    def amdsmi_get_gpu_memory_total(self, handle: int, kind: str) -> int:
        return 192 << 30

    def amdsmi_get_gpu_memory_usage(self, handle: int, kind: str) -> int:
        if kind == "vis":
            raise self.AmdSmiException("not supported")
        return 4 << 30


def collector_of(**libraries: Any) -> GpuCollector:
    return GpuCollector(Setup(node="n", context=Context(clock=StillClock())), libraries)


def read(collector: GpuCollector, *, again: bool = False) -> dict[tuple[str, ...], object]:
    if again:
        collector.refresh()
    return {(one.metric.name.removeprefix("kvdiag_gpu_"), *one.labels[1:]): one.value for one in collector.collect()}


def test_an_nvidia_gpu() -> None:
    assert read(collector_of(NVML=Nvml())) == {
        ("memory_bytes", GPU): 141 << 30,
        ("memory_used_bytes", GPU): 100 << 30,
        ("window_bytes", GPU): 256 << 30,
        ("window_used_bytes", GPU): 3 << 30,
        ("pcie_bytes_per_second", GPU, "transmit"): 7e6,
        ("pcie_bytes_per_second", GPU, "receive"): 9e6,
        ("nvlinks_active", GPU): 17,
        ("nvlink_bytes_total", GPU, "transmit"): 10240,
        ("nvlink_bytes_total", GPU, "receive"): 20480,
        ("fabric_state", GPU, "completed"): 1,
    }


def test_what_a_gpu_does_not_support_is_absent_and_no_fault() -> None:
    collector = collector_of(NVML=Nvml(("bar1", "pcie", "fabric"), links=0))
    assert set(read(collector)) == {("memory_bytes", GPU), ("memory_used_bytes", GPU)}
    assert collector.missing == ()


def test_a_library_that_fails_is_tried_again() -> None:
    nvml = Nvml()
    collector = collector_of(NVML=nvml, amdsmi=AmdSmi())
    assert len(read(collector)) == 13
    nvml.dead = True
    assert {key[1] for key in read(collector, again=True)} == {"0000:0c:00.0"}
    assert collector.missing == ("NVML: GPU is lost",)
    nvml.dead = False
    assert len(read(collector, again=True)) == 13
    assert nvml.inits == 2


def test_an_amd_gpu_without_visible_memory_shown() -> None:
    assert read(collector_of(amdsmi=AmdSmi())) == {
        ("memory_bytes", "0000:0c:00.0"): 192 << 30,
        ("memory_used_bytes", "0000:0c:00.0"): 4 << 30,
        ("window_bytes", "0000:0c:00.0"): 192 << 30,
    }


def test_without_a_driver_there_is_no_collector(tmp_path: Path) -> None:
    assert create(Setup(node="n", context=Context(root=tmp_path))) is None
    (tmp_path / "proc/driver/nvidia").mkdir(parents=True)
    (tmp_path / "proc/driver/nvidia/version").write_text("x")
    assert create(Setup(node="n", context=Context(root=tmp_path, live=False))) is None


def test_a_library_that_hangs_holds_up_no_scrape_and_its_old_figures_go(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = Nvml()
    go_on = threading.Event()
    count = nvml.nvmlDeviceGetCount
    clock = StillClock()
    collector = GpuCollector(Setup(node="n", context=Context(clock=clock)), {"NVML": nvml})
    assert len(read(collector)) == 10
    monkeypatch.setattr(nvml, "nvmlDeviceGetCount", lambda: go_on.wait(30) and count())
    clock.now_s += READ_EVERY_S
    assert len(read(collector)) == 10
    clock.now_s += STALE_S
    assert read(collector) == {}
    assert collector.missing == ("NVML: no answer for 30 s",)
    go_on.set()
    assert collector._thread is not None
    collector._thread.join(10)
    assert len(read(collector)) == 10
    assert not collector.missing
