import pytest

from kvdiag.derive.gpu_distance import Distance, between
from kvdiag.model.missing import Missing
from kvdiag.model.pci_topology import PciPlace

UNKNOWN = Missing("no NUMA node")


def place(path: str, numa_node: int | Missing = 0) -> PciPlace:
    steps = tuple(path.split("/"))
    return PciPlace(address=steps[-1], vendor=0x15B3, class_code=0x020000, path=steps, numa_node=numa_node)


@pytest.mark.parametrize(
    ("one", "other", "distance"),
    [
        ("a/port/up/down1/nic", "a/port/up/down2/gpu", Distance.PIX),
        ("a/port/nic.0", "a/port/nic.1", Distance.PIX),
        ("a/port/up/down1/up2/down3/nic", "a/port/up/down2/gpu", Distance.PXB),
        ("a/port1/nic", "a/port2/gpu", Distance.PHB),
        ("a/nic", "a/gpu", Distance.PHB),
        ("a/port/nic", "b/port/gpu", Distance.NODE),
    ],
)
def test_the_terms_of_nvidia_smi_topo(one: str, other: str, distance: Distance) -> None:
    assert between(place(one), place(other)) is distance
    assert between(place(other), place(one)) is distance


def test_between_numa_nodes() -> None:
    assert between(place("a/nic", 0), place("b/gpu", 1)) is Distance.SYS
    assert between(place("a/nic", 0), place("b/gpu", UNKNOWN)) == UNKNOWN
    assert between(place("a/nic", UNKNOWN), place("a/gpu", UNKNOWN)) is Distance.PHB


def test_only_what_stays_below_a_root_port_is_switched() -> None:
    assert [distance.name for distance in Distance if distance.is_switched] == ["PIX", "PXB"]
