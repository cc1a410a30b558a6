from pathlib import Path

import pytest

from kvdiag.model.missing import Missing
from kvdiag.model.nic_counters import AllNicCounters
from kvdiag.model.roce_qos import RoceQos
from kvdiag.sources import _ethtool, nic_counters, roce_qos
from kvdiag.sources.base import Context
from tests.trees import write_tree

TREE = """
sys/class/infiniband/mlx5_0 -> ../../devices/pci0000:3a/0000:3b:00.0/infiniband/mlx5_0
sys/devices/pci0000:3a/0000:3b:00.0/infiniband/mlx5_0/device -> ../../../0000:3b:00.0
sys/devices/pci0000:3a/0000:3b:00.0/infiniband/mlx5_0/tc/1/traffic_class = Global tclass=106
sys/class/net/ens1f0np0/device -> ../../../devices/pci0000:3a/0000:3b:00.0
sys/class/net/ens1f0np0/carrier_changes = 3
sys/class/net/ens1f0np0/qos/trust = dscp
sys/class/net/ens1f0np0/ecn/roce_np/enable/3 = 1
sys/class/net/ens1f0np0/ecn/roce_np/enable/4 = 0
sys/class/net/ens1f1np1/device -> ../../../devices/pci0000:3a/0000:3b:00.1
sys/class/net/eth0/device -> ../../../devices/pci0000:00/0000:00:02.0
sys/class/net/lo/carrier_changes = 0
commands/dcb-pfc-show-ens1f0np0.txt = pfc-cap 8 macsec-bypass off delay 0\\nprio-pfc 0:off 1:off 2:off 3:on 4:on 5:off 6:off 7:off
commands/dcb-pfc-show-ens1f1np1.txt = Error: Operation not supported
commands/ethtool-S-ens1f0np0.txt = NIC statistics:\\n     rx_prio3_pause: 148213\\n     tx_prio3_pause: 0\\n     rx_packets: 9
"""  # noqa: E501


def test_quality_of_service_of_the_interfaces_of_rdma_cards(tmp_path: Path) -> None:
    part = roce_qos.SOURCE.read(Context(root=write_tree(TREE, tmp_path), live=False))
    assert isinstance(part, RoceQos)
    assert [item.name for item in part.interfaces] == ["ens1f0np0", "ens1f1np1"]
    first, second = part.interfaces
    assert (first.trust, first.pfc, first.ecn_np, first.carrier_changes) == ("dscp", (3, 4), (3,), 3)
    assert first.ecn_rp == Missing("/sys/class/net/ens1f0np0/ecn/roce_rp/enable does not exist")
    assert second.pfc == Missing("/commands/dcb-pfc-show-ens1f1np1.txt: no line prio-pfc for ens1f1np1")
    assert [(item.device, item.traffic_class) for item in part.devices] == [("mlx5_0", 106)]
    assert part.of("0000:3b:00.0") == (first,)
    assert part.of("0000:3b:00.0", whole_card=True) == (first, second)
    assert part.of(Missing("")) == ()


def test_counters_of_flow_control_are_kept_and_others_dropped(tmp_path: Path) -> None:
    part = nic_counters.SOURCE.read(Context(root=write_tree(TREE, tmp_path), live=False))
    assert isinstance(part, AllNicCounters)
    first, second = part.interfaces
    assert first.counters == {"rx_prio3_pause": 148213, "tx_prio3_pause": 0}
    assert first.unreadable == ""
    assert (second.counters, second.unreadable) == ({}, "/commands/ethtool-S-ens1f1np1.txt does not exist")


def test_the_kernel_is_asked_for_real() -> None:
    with pytest.raises(OSError, match=r"not supported|No such device"):
        _ethtool.statistics("lo")
    with pytest.raises(OSError, match="No such device"):
        _ethtool.statistics("none0")
    for interface in Path("/sys/class/net").iterdir():
        try:
            counters = _ethtool.statistics(interface.name)
        except OSError:
            continue
        assert all(name.isprintable() and value >= 0 for name, value in counters.items())
