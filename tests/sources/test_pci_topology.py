from pathlib import Path

from kvdiag.model.missing import Missing
from kvdiag.model.pci_topology import PciPlace, PciTopology
from kvdiag.sources.base import Context
from kvdiag.sources.pci_topology import SOURCE
from tests.trees import write_tree

GPU = "sys/devices/pci0000:3a/0000:3a:01.0/0000:3b:00.0/0000:3c:00.0/0000:3d:00.0"


def read(text: str, folder: Path) -> PciTopology | Missing:
    return SOURCE.read(Context(root=write_tree(text, folder), live=False))


def test_a_place_is_the_way_from_the_root_bus(tmp_path: Path) -> None:
    part = read(
        f"""
        sys/bus/pci/devices/0000:3d:00.0 -> ../../../devices/{GPU.removeprefix("sys/devices/")}
        {GPU}/class = 0x030200
        {GPU}/vendor = 0x10de
        {GPU}/numa_node = 0
        """,
        tmp_path,
    )
    path = ("pci0000:3a", "0000:3a:01.0", "0000:3b:00.0", "0000:3c:00.0", "0000:3d:00.0")
    place = PciPlace(address="0000:3d:00.0", vendor=0x10DE, class_code=0x030200, path=path, numa_node=0)
    assert part == PciTopology(places=(place,))
    assert part.gpus == (place,)


def test_bridges_and_disks_are_left_out_and_an_unknown_numa_node_is_missing(tmp_path: Path) -> None:
    part = read(
        """
        sys/bus/pci/devices/0000:00:01.0 -> ../../../devices/pci0000:00/0000:00:01.0
        sys/devices/pci0000:00/0000:00:01.0/class = 0x060400
        sys/devices/pci0000:00/0000:00:01.0/vendor = 0x8086
        sys/bus/pci/devices/0000:00:02.0 -> ../../../devices/pci0000:00/0000:00:02.0
        sys/devices/pci0000:00/0000:00:02.0/class = 0x020000
        sys/devices/pci0000:00/0000:00:02.0/vendor = 0x15b3
        sys/devices/pci0000:00/0000:00:02.0/numa_node = -1
        """,
        tmp_path,
    )
    assert isinstance(part, PciTopology)
    (place,) = part.places
    assert place.address == "0000:00:02.0"
    assert place.numa_node == Missing(
        "/sys/bus/pci/devices/0000:00:02.0/numa_node is -1: the firmware names no NUMA node"
    )
    assert part.gpus == ()


def test_links_that_lead_nowhere_are_no_topology(tmp_path: Path) -> None:
    part = read("sys/bus/pci/devices/0000:3d:00.0 -> ../../../devices/pci0000:3a/0000:3d:00.0", tmp_path)
    assert part == Missing("/sys/bus/pci/devices/0000:3d:00.0/class does not exist")
