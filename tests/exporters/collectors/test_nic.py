"""Ports of every driver, from the recorded host trees: one meaning, whatever the names."""

from pathlib import Path

import pytest

from kvdiag.model.missing import Missing
from kvdiag.sources._rdma_ports import LIST_EVERY_S, PortReader
from kvdiag.sources.base import Context
from kvdiag.sources.tree import Tree
from kvdiag_exporters.catalog import Buckets
from kvdiag_exporters.collectors.base import Setup
from kvdiag_exporters.collectors.nic import NicCollector
from kvdiag_exporters.collectors.nic_ethtool import READ_EVERY_S, NicEthtoolCollector
from kvdiag_exporters.nic_map import COUNTED, kind_of
from tests.exporters.host import StillClock
from tests.trees import write_tree

PORT = "sys/class/infiniband/{device}/ports/1"


def setup(root: Path) -> Setup:
    return Setup(node="n", context=Context(root=root, live=False, clock=StillClock()))


def read(collector: NicCollector | NicEthtoolCollector) -> dict[tuple[str, ...], float]:
    found = {}
    for one in collector.collect():
        assert not isinstance(one.value, Buckets)
        key = (one.metric.name.removeprefix("kvdiag_"), *one.labels[1:])
        assert key not in found, key
        found[key] = one.value
    return found


def one_port(tmp_path: Path, entries: str, device: str = "x0") -> Setup:
    base = PORT.format(device=device)
    lines = [f"{base}/state = 4: ACTIVE", f"{base}/rate = 100 Gb/sec (4X EDR)"]
    lines += [f"{base}/{line}" for line in entries.splitlines() if line.strip()]
    write_tree("\n".join(lines), tmp_path / "root")
    return setup(tmp_path / "root")


@pytest.mark.parametrize(("driver", "name", "canonical"), [
    ("mlx5", "local_ack_timeout_err", "ack_timeouts"), ("mlx5", "out_of_sequence", "out_of_sequence"),
    ("mlx5", "packet_seq_err", "sequence_naks"), ("mlx5", "rnr_nak_retry_err", "rnr_naks"),
    ("mlx5", "out_of_buffer", "receiver_not_ready"), ("mlx5", "rp_cnp_handled", "cnp_handled"),
    ("mlx5", "rp_cnp_ignored", "cnp_ignored"), ("mlx5", "np_cnp_sent", "cnp_sent"),
    ("mlx5", "np_ecn_marked_roce_packets", "ecn_marked_packets"), ("mlx5", "roce_adp_retrans", "retransmits"),
    ("mlx5", "req_remote_access_errors", "remote_access_errors"),
    ("mlx5", "req_cqe_flush_error", "flushed_completions"),
    ("bnxt_re", "tx_bytes", "transmit_bytes"), ("bnxt_re", "to_retransmits", "retransmits"),
    ("bnxt_re", "max_retry_exceeded", "retries_exceeded"), ("bnxt_re", "oos_drop_count", "out_of_sequence"),
    ("bnxt_re", "seq_err_naks_rcvd", "sequence_naks"), ("bnxt_re", "rnr_naks_rcvd", "rnr_naks"),
    ("bnxt_re", "rx_cnp_pkts", "cnp_handled"), ("bnxt_re", "tx_cnp_pkts", "cnp_sent"),
    ("bnxt_re", "rx_ecn_marked_pkts", "ecn_marked_packets"), ("bnxt_re", "remote_access_err", "remote_access_errors"),
    ("bnxt_re", "dup_req", "duplicate_requests"), ("bnxt_re", "rx_roce_discards", "receive_discards"),
    ("irdma", "cnpHandled", "cnp_handled"), ("irdma", "cnpSent", "cnp_sent"),
    ("irdma", "RxECNMrkd", "ecn_marked_packets"), ("irdma", "RetransSegs", "retransmits"),
    ("irdma", "Nak Sequence Error", "out_of_sequence"), ("irdma", "RNR sent", "receiver_not_ready"),
    ("efa", "rx_bytes", "receive_bytes"), ("efa", "retrans_pkts", "retransmits"),
    ("efa", "retrans_timeout_events", "ack_timeouts"), ("efa", "rx_drops", "receive_discards"),
    ("efa", "unresponsive_remote_events", "unresponsive_remotes"),
    ("mana", "requester_timeout", "ack_timeouts"), ("mana", "responder_oos", "out_of_sequence"),
    ("mana", "requester_oos_nak", "sequence_naks"), ("mana", "requester_rnr_nak", "rnr_naks"),
    ("mana", "requester_retries_exceeded", "retries_exceeded"), ("mana", "received_cnps", "cnp_handled"),
    ("mana", "sent_cnps", "cnp_sent"), ("mana", "received_ecns", "ecn_marked_packets"),
    ("mana", "nak_access_error", "remote_access_errors"), ("mana", "rx_packets", "receive_packets"),
    ("ionic", "tx_rdma_ucast_bytes", "transmit_bytes"), ("ionic", "req_tx_retry_excd_err", "retries_exceeded"),
    ("ionic", "rx_rdma_ecn_pkts", "ecn_marked_packets"), ("ionic", "resp_rx_outouf_seq", "out_of_sequence"),
    ("rxe", "sent_pkts", "transmit_packets"), ("rxe", "completer_retry_err", "retransmits"),
    ("rxe", "out_of_seq_request", "out_of_sequence"), ("rxe", "rcvd_seq_err", "sequence_naks"),
    ("rxe", "rcvd_rnr_err", "rnr_naks"), ("rxe", "send_rnr_err", "receiver_not_ready"),
    ("rxe", "retry_exceeded_err", "retries_exceeded"), ("rxe", "link_downed", "link_downed"),
])  # fmt: skip
def test_each_drivers_names_have_one_meaning(tmp_path: Path, driver: str, name: str, canonical: str) -> None:
    found = read(NicCollector(one_port(tmp_path, f"hw_counters/{name} = 41")))
    assert found[f"rdma_port_{canonical}_total", "x0", "1"] == 41
    assert found["rdma_port_raw_total", "x0", "1", "hw", name] == 41


def test_no_name_has_two_meanings() -> None:
    names = [name for one in COUNTED for name in (*one.hw, *(pma for pma, _ in one.pma))]
    twice = {name for name in names if names.count(name) > 1}
    assert twice == {"link_downed"}  # PMA's and rxe's, with the same meaning


def test_words_become_bytes_once_and_the_raw_word_stays(tmp_path: Path) -> None:
    found = read(NicCollector(one_port(tmp_path, "counters/port_xmit_data = 1000\nhw_counters/tx_bytes = 9")))
    assert found["rdma_port_transmit_bytes_total", "x0", "1"] == 4000
    assert found["rdma_port_raw_total", "x0", "1", "pma", "port_xmit_data"] == 1000


def test_settings_and_levels_are_no_counters(tmp_path: Path) -> None:
    found = read(NicCollector(one_port(tmp_path, "hw_counters/lifespan = 12\nhw_counters/active_qps = 3")))
    assert found["rdma_port_level", "x0", "1", "active_qps"] == 3
    assert not [key for key in found if "lifespan" in key or (key[-1] == "active_qps" and "raw" in key[0])]
    assert [kind_of(name) for name in ("watermark_qps", "tx_bytes", "current_rate")] == ["level", "counter", "level"]


def test_saturated_unreadable_and_absent_are_three_things(tmp_path: Path) -> None:
    collector = NicCollector(
        one_port(
            tmp_path,
            "counters/link_downed = 255\ncounters/symbol_error = 254\ncounters/port_xmit_data = N/A (no PMA)\n"
            "counters/VL15_dropped/",
        )
    )
    found = read(collector)
    assert [key for key in found if key[0] == "rdma_port_saturated"] == [
        ("rdma_port_saturated", "x0", "1", "link_downed")
    ]
    assert found["rdma_port_unreadable", "x0", "1"] == 2
    assert ("rdma_port_transmit_bytes_total", "x0", "1") not in found
    assert any("'N/A (no PMA)', not a number" in why for why in collector.missing)


def test_a_port_without_a_folder_of_counters_has_none_unreadable(tmp_path: Path) -> None:
    assert read(NicCollector(one_port(tmp_path, "hw_counters/sent_pkts = 1")))["rdma_port_unreadable", "x0", "1"] == 0


def test_utilisation_is_the_share_of_the_rate_between_two_collections(tmp_path: Path) -> None:
    given = one_port(tmp_path, "hw_counters/tx_bytes = 1000\nhw_counters/rx_bytes = 5000")
    clock = given.clock
    assert isinstance(clock, StillClock)
    collector = NicCollector(given)

    def shares(sent: float, after_s: float) -> dict[str, float]:
        base = given.context.root / PORT.format(device="x0") / "hw_counters"
        (base / "tx_bytes").write_text(f"{int(sent)}\n")
        clock.now_s += after_s
        return {key[-1]: value for key, value in read(collector).items() if key[0] == "rdma_port_utilisation_ratio"}

    assert shares(1000, 0) == {}
    assert shares(1000 + 12.5e9, 2) == {"transmit": 0.5, "receive": 0}
    assert shares(1000 + 12.5e9, 0.1) == {"transmit": 0.5, "receive": 0}  # too soon: the last share stands
    assert shares(1000 + 12.5e9 + 26e9, 1.9) == {"transmit": 1.0, "receive": 0}
    assert shares(1000 + 12.5e9 + 26e9 + 99e9, 2) == {"receive": 0}  # impossible
    assert shares(7, 2) == {"receive": 0}  # the driver was loaded again


def test_a_link_that_flaps_is_counted(tmp_path: Path) -> None:
    given = one_port(tmp_path, "")
    collector = NicCollector(given)
    for state in ("4: ACTIVE", "1: DOWN", "2: INIT", "4: ACTIVE", "garbage", "1: DOWN"):
        write_tree(f"{PORT.format(device='x0')}/state = {state}", given.context.root)
        found = read(collector)
    assert found["rdma_port_link_changes_total", "x0", "1", "down"] == 2
    assert found["rdma_port_link_changes_total", "x0", "1", "up"] == 1


def test_devices_come_and_go(tmp_path: Path) -> None:
    given = one_port(tmp_path, "hw_counters/tx_bytes = 1")
    collector = NicCollector(given)
    read(collector)
    write_tree(f"{PORT.format(device='y0')}/state = 4: ACTIVE\n- sys/class/infiniband/x0", given.context.root)
    assert {key[1] for key in read(collector)} == {"y0"}


def test_a_counter_that_appears_or_goes_is_seen_when_folders_are_listed_again(tmp_path: Path) -> None:
    given = one_port(tmp_path, "hw_counters/tx_bytes = 1\nhw_counters/rx_bytes = 2")
    clock = given.clock
    assert isinstance(clock, StillClock)
    reader = PortReader(Tree.of(given.context), clock)

    def names() -> set[str]:
        found = reader.read()
        assert not isinstance(found, Missing)
        return set(found[0][0].hw_counters)

    assert names() == {"tx_bytes", "rx_bytes"}
    base = PORT.format(device="x0")
    write_tree(f"{base}/hw_counters/new = 3", given.context.root)
    assert names() == {"tx_bytes", "rx_bytes"}
    clock.now_s += LIST_EVERY_S
    assert names() == {"tx_bytes", "rx_bytes", "new"}
    write_tree(f"- {base}/hw_counters/new\n{base}/hw_counters/newer = 4", given.context.root)
    assert names() == {"tx_bytes", "rx_bytes"}
    assert names() == {"tx_bytes", "rx_bytes", "newer"}


def test_what_was_gone_is_seen_as_soon_as_it_is_back(tmp_path: Path) -> None:
    given = one_port(tmp_path, "hw_counters/tx_bytes = 1\nhw_counters/rx_bytes = 2")
    collector = NicCollector(given)
    base = PORT.format(device="x0")
    whole = read(collector)
    write_tree(f"- {base}/hw_counters/tx_bytes", given.context.root)
    for _ in range(3):
        assert len(read(collector)) < len(whole)
    write_tree(f"{base}/hw_counters/tx_bytes = 1", given.context.root)
    assert read(collector).keys() == whole.keys()
    ports = given.context.root / base.rpartition("/")[0]  # the device stays in its class, as while a driver starts
    ports.rename(tmp_path / "away")
    for _ in range(3):
        read(collector)
    (tmp_path / "away").rename(ports)
    read(collector)
    assert read(collector).keys() == whole.keys()


def test_efas_passive_side_and_its_devices_own_counters(tmp_path: Path) -> None:
    write_tree(
        "base efa-p5en\nsys/class/infiniband/rdmap156s0/ports/1/hw_counters/rdma_read_resp_bytes = 77\n"
        "sys/class/infiniband/rdmap156s0/hw_counters/reg_mr_err = 2",
        tmp_path / "root",
    )
    found = read(NicCollector(setup(tmp_path / "root")))
    assert found["rdma_port_operation_bytes_total", "rdmap156s0", "1", "read_served"] == 77
    assert found["rdma_device_raw_total", "rdmap156s0", "reg_mr_err"] == 2


@pytest.mark.parametrize("host", ["dgx-8x-infiniband", "mi300x-bnxt", "mi300x-ionic", "irdma", "efa-p5en", "roce-bond"])
def test_every_counter_of_a_recorded_host_is_served(tmp_path: Path, host: str) -> None:
    root = write_tree(f"base {host}", tmp_path / "root")
    found = read(NicCollector(setup(root)))
    places = root.glob("sys/class/infiniband/*/ports/1/*counters/*")
    files = [path for path in places if path.read_text().strip().isdecimal()]
    assert files
    served = {(key[1], key[-1]) for key in found if key[0] in ("rdma_port_raw_total", "rdma_port_level")}
    wanted = {(path.parents[3].name, path.name) for path in files if kind_of(path.name) != "setting"}
    assert wanted <= served
    assert len([key for key in found if key[0] == "rdma_port_up"]) == len({device for device, _ in wanted})


def test_no_rdma_at_all(tmp_path: Path) -> None:
    collector = NicCollector(setup(write_tree("base no-rdma", tmp_path / "root")))
    assert read(collector) == {}
    assert collector.missing == ()


ETHTOOL = """NIC statistics:
     rx_prio3_bytes: 882345
     rx_prio3_pause: 148213
     rx_prio3_pause_duration: 3320119
     rx_prio3_packets: 5
     tx_prio3_pause: 7
     rx_prio3_buf_discard: 9
     tx_pause_storm_warning_events: 2
     rx_global_pause: 11
     link_down_events_phy: 4
     rx_discards_phy: 6
"""


def test_pauses_by_priority(tmp_path: Path) -> None:
    root = write_tree(
        "sys/class/infiniband/mlx5_0/device -> ../../../devices/pci0000:3a/0000:3b:00.0\n"
        "sys/class/net/eth5/device -> ../../../devices/pci0000:3a/0000:3b:00.0\n"
        "sys/devices/pci0000:3a/0000:3b:00.0/vendor = 0x15b3",
        tmp_path / "root",
    )
    (root / "commands").mkdir()
    (root / "commands/ethtool-S-eth5.txt").write_text(ETHTOOL)
    given = setup(root)
    collector = NicEthtoolCollector(given)
    found = read(collector)
    assert found == {
        ("netdev_priority_bytes_total", "eth5", "receive", "3"): 882345,
        ("netdev_pause_frames_total", "eth5", "receive", "3"): 148213,
        ("netdev_pause_seconds_total", "eth5", "receive", "3"): pytest.approx(3.320119),
        ("netdev_pause_frames_total", "eth5", "transmit", "3"): 7,
        ("netdev_priority_discards_total", "eth5", "3"): 9,
        ("netdev_pause_storms_total", "eth5"): 2,
        ("netdev_pause_frames_total", "eth5", "receive", "global"): 11,
        ("netdev_ethtool_total", "eth5", "link_down_events_phy"): 4,
        ("netdev_ethtool_total", "eth5", "rx_discards_phy"): 6,
    }
    (root / "commands/ethtool-S-eth5.txt").unlink()
    assert read(collector) == found
    clock = given.clock
    assert isinstance(clock, StillClock)
    clock.now_s += READ_EVERY_S
    assert read(collector) == {}
    assert "ethtool-S-eth5" in collector.missing[0]
