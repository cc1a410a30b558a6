import os
from pathlib import Path

import pytest

from kvdiag.model.missing import Missing
from kvdiag.model.rdma import RdmaDevices
from kvdiag.sources.base import Context
from kvdiag.sources.rdma_sysfs import SOURCE, format_gid
from tests.trees import write_tree

ROCE_V2_ON_A_SPARSE_TABLE = """
sys/class/infiniband/mlx5_0 -> ../../devices/pci0000:3a/0000:3b:00.0/infiniband/mlx5_0
sys/class/infiniband_verbs/uverbs3/ibdev = mlx5_0
sys/bus/pci/drivers/mlx5_core/
sys/devices/pci0000:3a/0000:3b:00.0/driver -> ../../../bus/pci/drivers/mlx5_core
sys/devices/pci0000:3a/0000:3b:00.0/numa_node = -1
sys/devices/pci0000:3a/0000:3b:00.0/physfn -> ../0000:3a:00.0
sys/devices/pci0000:3a/0000:3a:00.0/vendor = 0x15b3
sys/devices/pci0000:3a/0000:3b:00.0/infiniband/mlx5_0/device -> ../../../0000:3b:00.0
sys/devices/pci0000:3a/0000:3b:00.0/infiniband/mlx5_0/node_type = 1: CA
sys/devices/pci0000:3a/0000:3b:00.0/infiniband/mlx5_0/node_guid = a088:c203:0011:2233
sys/devices/pci0000:3a/0000:3b:00.0/infiniband/mlx5_0/fw_ver =
sys/devices/pci0000:3a/0000:3b:00.0/infiniband/mlx5_0/ports/1/state = 4: ACTIVE
sys/devices/pci0000:3a/0000:3b:00.0/infiniband/mlx5_0/ports/1/phys_state = 5: LinkUp
sys/devices/pci0000:3a/0000:3b:00.0/infiniband/mlx5_0/ports/1/link_layer = Ethernet
sys/devices/pci0000:3a/0000:3b:00.0/infiniband/mlx5_0/ports/1/rate = 2.5 Gb/sec (1X SDR)
sys/devices/pci0000:3a/0000:3b:00.0/infiniband/mlx5_0/ports/1/lid = 0x10
sys/devices/pci0000:3a/0000:3b:00.0/infiniband/mlx5_0/ports/1/gids/0 = 0000:0000:0000:0000:0000:0000:0000:0000
sys/devices/pci0000:3a/0000:3b:00.0/infiniband/mlx5_0/ports/1/gid_attrs/types/0/
sys/devices/pci0000:3a/0000:3b:00.0/infiniband/mlx5_0/ports/1/gids/10 = 0000:0000:0000:0000:0000:ffff:c000:0201
sys/devices/pci0000:3a/0000:3b:00.0/infiniband/mlx5_0/ports/1/gid_attrs/types/10 = RoCE v2
sys/devices/pci0000:3a/0000:3b:00.0/infiniband/mlx5_0/ports/1/gid_attrs/ndevs/10/
sys/devices/pci0000:3a/0000:3b:00.0/infiniband/mlx5_0/ports/1/gids/9 = fe80:0000:0000:0000:a288:c2ff:fe5b:0001
sys/devices/pci0000:3a/0000:3b:00.0/infiniband/mlx5_0/ports/1/gid_attrs/types/9 = IB/RoCE v1
sys/devices/pci0000:3a/0000:3b:00.0/infiniband/mlx5_0/ports/1/gid_attrs/ndevs/9 = net1
"""


def read(root: Path) -> RdmaDevices:
    devices = SOURCE.read(Context(root=root, live=False))
    assert isinstance(devices, RdmaDevices)
    return devices


def test_attributes_are_read_through_the_device_link(tmp_path: Path) -> None:
    (device,) = read(write_tree(ROCE_V2_ON_A_SPARSE_TABLE, tmp_path)).devices
    assert (device.name, device.driver, device.node_type, device.uverbs) == ("mlx5_0", "mlx5_core", "CA", "uverbs3")
    assert device.pci_address == "0000:3b:00.0"
    assert device.sysfs_path == "/sys/devices/pci0000:3a/0000:3b:00.0/infiniband/mlx5_0"
    assert device.is_vf
    assert device.numa_node == Missing(
        "/sys/class/infiniband/mlx5_0/device/numa_node is -1: the firmware names no NUMA node"
    )
    assert device.fw_ver == Missing("/sys/class/infiniband/mlx5_0/fw_ver is empty")
    assert device.hca_type == Missing("/sys/class/infiniband/mlx5_0/hca_type does not exist")


def test_port_attributes_lose_their_number(tmp_path: Path) -> None:
    (port,) = read(write_tree(ROCE_V2_ON_A_SPARSE_TABLE, tmp_path)).ports
    assert (port.name, port.state, port.phys_state, port.link_layer) == ("mlx5_0/1", "ACTIVE", "LinkUp", "Ethernet")
    assert (port.rate_gbps, port.rate_text, port.lid) == (2.5, "2.5 Gb/sec (1X SDR)", 16)


def test_a_sparse_gid_table_is_read_to_its_end_in_numeric_order(tmp_path: Path) -> None:
    (port,) = read(write_tree(ROCE_V2_ON_A_SPARSE_TABLE, tmp_path)).ports
    assert not isinstance(port.gids, Missing)
    assert [(gid.index, gid.gid, gid.type) for gid in port.gids] == [
        (9, "fe80::a288:c2ff:fe5b:1", "IB/RoCE v1"),
        (10, "::ffff:192.0.2.1", "RoCE v2"),
    ]
    assert port.gids[0].netdev == "net1"
    assert isinstance(port.gids[1].netdev, Missing)


def test_a_dangling_device_link_keeps_the_device_and_says_why_it_is_blank(tmp_path: Path) -> None:
    write_tree("sys/class/infiniband/mlx5_7 -> ../../devices/pci0000:3a/infiniband/mlx5_7", tmp_path)
    (device,) = read(tmp_path).devices
    assert device.ports == ()
    assert device.sysfs_path == Missing("/sys/class/infiniband/mlx5_7 does not exist")


def test_no_class_is_no_device_but_no_sysfs_is_not_observable(tmp_path: Path) -> None:
    assert read(write_tree("sys/class/net/lo/mtu = 65536", tmp_path / "host")).devices == ()
    nothing = SOURCE.read(Context(root=tmp_path / "nothing", live=False))
    assert nothing == Missing("/sys/class/infiniband does not exist")


def test_a_link_out_of_a_copied_tree_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "node_type").write_text("1: CA\n")
    write_tree("sys/class/infiniband/mlx5_0 -> ../../../../outside", tmp_path / "host")
    (device,) = read(tmp_path / "host").devices
    assert device.node_type == Missing("/sys/class/infiniband/mlx5_0/node_type leads out of the tree")


def test_a_pipe_in_the_tree_does_not_block(tmp_path: Path) -> None:
    write_tree("sys/class/infiniband/mlx5_0/ports/1/state = 4: ACTIVE", tmp_path)
    os.mkfifo(tmp_path / "sys/class/infiniband/mlx5_0/ports/1/rate")
    (port,) = read(tmp_path).ports
    assert port.state == "ACTIVE"
    assert port.rate_gbps == Missing("/sys/class/infiniband/mlx5_0/ports/1/rate: not a regular file")


def test_only_rxe_has_a_parent_attribute(tmp_path: Path) -> None:
    (device,) = read(write_tree("sys/class/infiniband/rxe0/parent = eth0", tmp_path)).devices
    assert device.driver == "rdma_rxe"


def test_mapped_addresses_read_the_same_in_every_python() -> None:
    assert format_gid("0000:0000:0000:0000:0000:ffff:c000:0201") == "::ffff:192.0.2.1"
    with pytest.raises(ValueError, match="gid"):
        format_gid("gid")
