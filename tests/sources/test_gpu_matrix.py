from pathlib import Path

from kvdiag.model.gpu_matrix import GpuLink, GpuMatrix
from kvdiag.model.missing import Missing
from kvdiag.sources.base import Context
from kvdiag.sources.gpu_matrix import SOURCE, parse

MATRIX = """\t\x1b[4mGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m
GPU0\t X \tNV18\tPIX\t0-47,96-143\t0\t\tN/A
GPU1\tNV18\t X \tSYS\t48-95\t1\t\tN/A
NIC0\tPIX\tSYS\t X\t

Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes

NIC Legend:

  NIC0: mlx5_0
"""


def test_each_pair_once_with_the_devices_names() -> None:
    links = (
        GpuLink(one="GPU0", other="GPU1", kind="NV18"),
        GpuLink(one="GPU0", other="mlx5_0", kind="PIX"),
        GpuLink(one="GPU1", other="mlx5_0", kind="SYS"),
    )
    assert parse(MATRIX) == links
    assert GpuMatrix(links=links, origin="text").between_gpus == links[:1]


def test_columns_headed_by_device_names() -> None:
    assert parse("\tGPU0\tmlx5_0\tCPU Affinity\nGPU0\t X \tPHB\t0-7\nmlx5_0\tPHB\t X \t\n") == (
        GpuLink(one="GPU0", other="mlx5_0", kind="PHB"),
    )


def test_other_text_is_no_matrix(tmp_path: Path) -> None:
    (tmp_path / "commands").mkdir()
    (tmp_path / "commands/nvidia-smi-topo-m.txt").write_text("No devices were found\n")
    part = SOURCE.read(Context(root=tmp_path, live=False))
    assert part == Missing("/commands/nvidia-smi-topo-m.txt holds no matrix")
