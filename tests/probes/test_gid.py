import pytest

from kvdiag.errors import UndeterminedError, UsageError
from kvdiag.model.missing import Missing
from kvdiag.model.rdma import Gid, Port, RdmaDevice, RdmaDevices
from kvdiag_probes.gid import choose

LINK_LOCAL_V1 = Gid(index=0, gid="fe80::1", type="IB/RoCE v1", netdev="eth0")
LINK_LOCAL_V2 = Gid(index=1, gid="fe80::1", type="RoCE v2", netdev="eth0")
IPV4_V1 = Gid(index=2, gid="::ffff:10.0.0.1", type="IB/RoCE v1", netdev="eth0")
IPV4_V2 = Gid(index=3, gid="::ffff:10.0.0.1", type="RoCE v2", netdev="eth0")
GLOBAL_V2 = Gid(index=5, gid="fd00::1", type="RoCE v2", netdev="eth0")


def device(name: str, *gids: Gid, state: str = "ACTIVE", link_layer: str = "Ethernet") -> RdmaDevice:
    absent = Missing("not in this test")
    port = Port(
        device=name,
        number=1,
        state=state,
        phys_state="LinkUp",
        link_layer=link_layer,
        rate_gbps=100.0,
        rate_text="100 Gb/sec",
        lid=absent,
        gids=gids,
        pkeys=absent,
    )
    return RdmaDevice(
        name=name,
        sysfs_path=absent,
        driver=absent,
        node_type=absent,
        node_guid=absent,
        sys_image_guid=absent,
        fw_ver=absent,
        hca_type=absent,
        board_id=absent,
        numa_node=absent,
        pci_address=absent,
        is_vf=False,
        uverbs=absent,
        ports=(port,),
    )


def devices(*found: RdmaDevice) -> RdmaDevices:
    return RdmaDevices(devices=found)


def test_a_routable_roce_v2_gid_comes_first() -> None:
    chosen = choose(devices(device("mlx5_0", LINK_LOCAL_V1, LINK_LOCAL_V2, IPV4_V1, IPV4_V2, GLOBAL_V2)))
    assert (chosen.device, chosen.port, chosen.gid_index) == ("mlx5_0", 1, 3)


def test_a_global_ipv6_gid_is_routable_too() -> None:
    assert choose(devices(device("mlx5_0", LINK_LOCAL_V1, LINK_LOCAL_V2, GLOBAL_V2))).gid_index == 5


def test_link_local_v2_comes_before_v1() -> None:
    assert choose(devices(device("mlx5_0", LINK_LOCAL_V1, LINK_LOCAL_V2, IPV4_V1))).gid_index == 1


def test_infiniband_comes_before_a_device_without_routable_gid() -> None:
    ib = device("mlx5_9", Gid(index=0, gid="fe80::2", type="IB/RoCE v1", netdev=Missing("IB")), link_layer="InfiniBand")
    assert choose(devices(device("mlx5_0", LINK_LOCAL_V2), ib)).device == "mlx5_9"


def test_the_address_of_the_control_connection_breaks_ties() -> None:
    other = Gid(index=3, gid="::ffff:10.0.0.2", type="RoCE v2", netdev="eth1")
    both = devices(device("mlx5_0", IPV4_V2), device("mlx5_1", other))
    assert choose(both).device == "mlx5_0"
    assert choose(both, addresses=["10.0.0.2"]).device == "mlx5_1"
    assert choose(both, addresses=["192.168.0.9"]).device == "mlx5_0"


def test_a_port_that_is_down_is_passed_over() -> None:
    assert choose(devices(device("mlx5_0", IPV4_V2, state="DOWN"), device("mlx5_1", LINK_LOCAL_V2))).device == "mlx5_1"


def test_restrictions_are_obeyed() -> None:
    both = devices(device("mlx5_0", IPV4_V2), device("mlx5_1", LINK_LOCAL_V1, IPV4_V2))
    assert choose(both, device="mlx5_1", gid_index=0).type == "IB/RoCE v1"
    with pytest.raises(UsageError, match=r"no port mlx5_7/\* here; there are mlx5_0/1, mlx5_1/1"):
        choose(both, device="mlx5_7")
    with pytest.raises(UsageError, match=r"--gid-index: mlx5_0/1: no GID at index 9; there are \d"):
        choose(both, device="mlx5_0", gid_index=9)


def test_nothing_usable_says_what_is_there() -> None:
    with pytest.raises(UndeterminedError, match="no RDMA device on this host"):
        choose(devices())
    with pytest.raises(UndeterminedError, match="mlx5_0/1 is DOWN"):
        choose(devices(device("mlx5_0", IPV4_V2, state="DOWN")))
    with pytest.raises(UndeterminedError, match="no GID at all"):
        choose(devices(device("mlx5_0")))
