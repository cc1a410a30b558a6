import ctypes
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec

from kvdiag.model.gpu import AmdGpus, NvidiaGpus
from kvdiag.model.missing import Missing
from kvdiag.sources import _amdsmi_query, _nvml_query, amd_gpus, nvidia_gpus
from kvdiag.sources.base import Context
from tests.trees import write_tree

# The shape of `nvidia-smi -q` (driver 570), shortened; values invented.
NVIDIA_SMI = """
==============NVSMI LOG==============

Timestamp                                 : Sat Nov 29 10:00:00 2026
Driver Version                            : 570.124.06
CUDA Version                              : 12.8

Attached GPUs                             : 2
GPU 00000000:DB:00.0
    Product Name                          : Tesla T4
    FB Memory Usage
        Total                             : 15360 MiB
        Used                              : 3 MiB
    BAR1 Memory Usage
        Total                             : 256 MiB
        Used                              : 2 MiB
        Free                              : 254 MiB
    Fabric
        State                             : N/A
        ClusterUUID                       : N/A

GPU 00000000:18:00.0
    Product Name                          : NVIDIA GB200
    FB Memory Usage
        Total                             : many
    Fabric
        State                             : Completed
        Status                            : Success
        CliqueId                          : 1
        ClusterUUID                       : 5f1c2d3e-0000-4a5b-8c6d-7e8f90a1b2c3
"""


class NVMLError(Exception):
    pass


class FabricInfo(ctypes.Structure):
    """c_nvmlGpuFabricInfo_v2_t of nvidia-ml-py 12.560 to 13.615."""

    _fields_ = (
        ("version", ctypes.c_uint),
        ("clusterUuid", ctypes.c_uint8 * 16),
        ("status", ctypes.c_uint),
        ("cliqueId", ctypes.c_uint32),
        ("state", ctypes.c_ubyte),
        ("healthMask", ctypes.c_uint32),
    )


def nvml() -> Any:
    def link(handle: int, number: int) -> int:
        if number == 18:
            raise NVMLError("Invalid Argument")
        return 0 if number == 5 else 1

    def fabric(handle: int, pointer: Any) -> None:
        # nvidia-ml-py hands its argument on as it is: a structure in place of a pointer ends the process.
        info = pointer._obj
        info.state, info.clusterUuid[:] = 3, range(16)

    def no_window(handle: int) -> None:
        raise NVMLError("Not Supported")

    return SimpleNamespace(
        NVMLError=NVMLError,
        nvmlDeviceGetCount=lambda: 2,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlSystemGetDriverVersion=lambda: "580.95.05",
        nvmlDeviceGetPciInfo=lambda handle: SimpleNamespace(busId=[b"00000000:DB:00.0", b"0008:01:00.0"][handle]),
        nvmlDeviceGetName=lambda handle: b"NVIDIA GB200",
        nvmlDeviceGetMemoryInfo=lambda handle: SimpleNamespace(total=1 << 37),
        nvmlDeviceGetBAR1MemoryInfo=no_window,
        nvmlDeviceGetNvLinkState=link,
        nvmlDeviceGetGpuFabricInfoV=fabric,
        c_nvmlGpuFabricInfo_v2_t=FabricInfo,
    )


def test_nvml_is_asked_and_what_it_refuses_is_missing() -> None:
    found = _nvml_query.query(nvml())
    assert [gpu.address for gpu in found.gpus] == ["0000:db:00.0", "0008:01:00.0"]
    gpu = found.gpus[0]
    assert (gpu.name, gpu.memory_bytes, gpu.links) == ("NVIDIA GB200", 1 << 37, 17)
    assert (gpu.fabric_state, gpu.cluster_uuid) == ("Completed", "00010203-0405-0607-0809-0a0b0c0d0e0f")
    assert gpu.window_bytes == Missing("NVML: Not Supported")
    assert found.driver == "580.95.05"
    assert msgspec.json.decode(msgspec.json.encode(found), type=NvidiaGpus) == found


def test_a_gpu_that_fell_off_the_bus_hides_no_other() -> None:
    def opened(index: int) -> int:
        if index == 0:
            raise NVMLError("GPU is lost")
        return index

    lost = nvml()
    lost.nvmlDeviceGetHandleByIndex = opened
    assert [gpu.address for gpu in _nvml_query.query(lost).gpus] == ["0008:01:00.0"]


def test_an_older_binding_without_a_call_hides_only_that_value() -> None:
    old = nvml()
    del old.nvmlDeviceGetGpuFabricInfoV
    gpu = _nvml_query.query(old).gpus[0]
    assert isinstance(gpu.fabric_state, Missing)
    assert gpu.links == 17


def test_the_text_of_nvidia_smi_is_read(tmp_path: Path) -> None:
    (tmp_path / "commands").mkdir()
    (tmp_path / "commands/nvidia-smi-q.txt").write_text(NVIDIA_SMI)
    part = nvidia_gpus.SOURCE.read(Context(root=tmp_path, live=False))
    assert isinstance(part, NvidiaGpus)
    assert part.driver == "570.124.06"
    large, small = part.gpus
    assert (small.address, small.window_bytes, small.window_used_bytes) == ("0000:db:00.0", 256 << 20, 2 << 20)
    assert small.cluster_uuid == Missing("nvidia-smi -q shows no Fabric / ClusterUUID")
    assert large.cluster_uuid == "5f1c2d3e-0000-4a5b-8c6d-7e8f90a1b2c3"
    assert large.memory_bytes == Missing("nvidia-smi -q shows 'many' as a size")
    assert large.window_bytes == Missing("nvidia-smi -q shows no BAR1 Memory Usage / Total")


class AmdSmiError(Exception):
    pass


def test_amdsmi_is_asked_and_what_it_refuses_is_left_out() -> None:
    def refuse(handle: int) -> None:
        raise AmdSmiError("not supported")

    fake = SimpleNamespace(
        AmdSmiException=AmdSmiError,
        amdsmi_get_processor_handles=lambda: [0],
        amdsmi_get_gpu_device_bdf=lambda handle: "0000:05:00.0",
        amdsmi_get_gpu_asic_info=lambda handle: {"market_name": "AMD Instinct MI300X", "device_id": "0x74a1"},
        amdsmi_get_gpu_driver_info=refuse,
        amdsmi_get_gpu_xgmi_link_status=lambda handle: {"status": ["X", "U", "U", "D"], "total_links": 4},
    )
    (named,) = _amdsmi_query.query(fake)
    assert named == _amdsmi_query.Named(address="0000:05:00.0", name="AMD Instinct MI300X", driver="", links=2)


def test_sizes_of_amd_gpus_come_from_sysfs(tmp_path: Path) -> None:
    base = "sys/bus/pci/devices/0000:05:00.0"
    write_tree(
        f"""
        {base}/driver -> ../../../bus/pci/drivers/amdgpu
        {base}/mem_info_vram_total = 206141652992
        {base}/mem_info_vis_vram_total = 268435456
        sys/module/amdgpu/version = 6.12.12
        commands/amdsmi.txt = [{{"address":"0000:05:00.0","name":"AMD Instinct MI300X","driver":"","links":7}}]
        """,
        tmp_path,
    )
    part = amd_gpus.SOURCE.read(Context(root=tmp_path, live=False))
    assert isinstance(part, AmdGpus)
    (gpu,) = part.gpus
    assert (gpu.name, gpu.memory_bytes, gpu.window_bytes, gpu.links) == (
        "AMD Instinct MI300X",
        206141652992,
        268435456,
        7,
    )
    assert part.driver == "6.12.12"
    assert part.at("0000:05:00.0") is gpu


def test_without_gpus_the_reason_is_named(tmp_path: Path) -> None:
    write_tree("sys/bus/pci/devices/", tmp_path)
    assert amd_gpus.SOURCE.read(Context(root=tmp_path, live=False)) == Missing("amdgpu drives no PCI function")
    assert nvidia_gpus.SOURCE.read(Context(root=tmp_path, live=False)) == Missing(
        "/commands/nvidia-smi-q.txt does not exist"
    )
