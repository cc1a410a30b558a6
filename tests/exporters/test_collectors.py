"""What single collectors do when the world changes between two collections."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from kvdiag.model.rdma_resources import RdmaResources
from kvdiag.model.transfer import TransferRecord
from kvdiag.sources import rdma_netlink
from kvdiag_exporters.catalog import Buckets, Sample
from kvdiag_exporters.collectors.base import Collector, Engine, Setup
from kvdiag_exporters.collectors.engine_process import EngineProcessCollector
from kvdiag_exporters.collectors.netdev import NetdevCollector
from kvdiag_exporters.collectors.nic import NicCollector
from kvdiag_exporters.collectors.nixl import NixlCollector
from kvdiag_exporters.collectors.rdma_resources import RdmaResourcesCollector
from kvdiag_exporters.collectors.records import RecordsCollector
from kvdiag_exporters.histogram import MOST_SERIES, OVERFLOW
from tests.exporters.host import NIXL, StillClock, write_host
from tests.netlink import CAPTURE, Replay
from tests.trees import write_tree


@pytest.fixture
def setup(tmp_path: Path) -> Setup:
    return write_host(tmp_path)


def read(collector: Collector) -> dict[tuple[str, ...], float | Buckets]:
    return {(one.metric.name, *one.labels): one.value for one in collector.collect()}


def test_port_data_is_counted_in_bytes(setup: Setup) -> None:
    words = setup.context.root / "sys/class/infiniband/mlx5_bond_0/ports/1/counters/port_xmit_data"
    found = read(NicCollector(setup))
    assert found["kvdiag_rdma_port_transmit_bytes_total", "host-a", "mlx5_bond_0", "1"] == 4 * int(words.read_text())


def test_a_port_that_is_not_active_is_down_and_an_unreadable_counter_is_absent(setup: Setup) -> None:
    port = "sys/class/infiniband/mlx5_bond_0/ports/1"
    write_tree(f"{port}/state = 1: DOWN\n{port}/counters/port_xmit_data = N/A (no PMA)\n", setup.context.root)
    found = read(NicCollector(setup))
    assert found["kvdiag_rdma_port_up", "host-a", "mlx5_bond_0", "1"] == 0
    assert ("kvdiag_rdma_port_transmit_bytes_total", "host-a", "mlx5_bond_0", "1") not in found
    assert ("kvdiag_rdma_port_receive_bytes_total", "host-a", "mlx5_bond_0", "1") in found


def test_an_engine_in_its_own_namespace_is_seen_beside_the_host(setup: Setup) -> None:
    found = read(NetdevCollector(setup))
    assert found["kvdiag_netdev_transmit_bytes_total", "prefill-0", "demo", "eth0"] == 6000
    assert found["kvdiag_netdev_transmit_bytes_total", "host-a", "", "eth0"] == 800
    assert ("kvdiag_netdev_transmit_bytes_total", "host-a", "", "veth1") not in found
    assert found["kvdiag_netdev_speed_bytes_per_second", "prefill-0", "demo", "eth0"] == 25e9 / 8
    assert found["kvdiag_tcp_retransmitted_segments_total", "prefill-0", "demo"] == 3


def test_a_dead_engine_and_a_reused_process_id_are_down(setup: Setup) -> None:
    collector = EngineProcessCollector(setup)
    labels = ("prefill-0", "demo", "prefill")
    alive = read(collector)
    assert alive["kvdiag_engine_up", *labels] == 1
    assert alive["kvdiag_engine_cpu_seconds_total", *labels] == pytest.approx(3.65)
    assert alive["kvdiag_engine_pinned_memory_bytes", *labels] == 1 << 20
    assert (alive["kvdiag_engine_processes", *labels], alive["kvdiag_engine_threads", *labels]) == (2, 4)
    stat = setup.context.root / "proc/121/stat"
    before = stat.read_text()
    stat.write_text(before.replace(" 5000 ", " 7777 "))
    assert read(collector) == {("kvdiag_engine_up", *labels): 0.0}
    assert "process 121 is now another one" in collector.missing[0]
    stat.unlink()
    assert read(collector) == {("kvdiag_engine_up", *labels): 0.0}
    stat.write_text(before)
    assert read(collector)["kvdiag_engine_up", *labels] == 1


def test_rdma_objects_belong_to_the_engine_whose_process_made_them(setup: Setup) -> None:
    found = read(RdmaResourcesCollector(setup))
    assert found["kvdiag_rdma_queue_pairs", "host-a", "rxe0", "demo", "RC", "ERR"] == 1
    assert found["kvdiag_rdma_queue_pairs", "host-a", "rxe0", "demo", "RC", "RESET"] == 2
    assert found["kvdiag_rdma_queue_pairs", "host-a", "rxe0", "(kernel)", "GSI", "RTS"] == 1
    assert found["kvdiag_rdma_engine_objects", "host-a", "rxe0", "demo", "mr"] == 3
    assert found["kvdiag_rdma_memory_region_bytes", "host-a", "rxe0", "demo"] == 4096 + 8192 + 65536
    assert found["kvdiag_rdma_objects", "host-a", "rxe1", "qp"] == 1
    assert found["kvdiag_rdma_memory_regions_seen_total", "host-a", "rxe0", "demo"] == 0


def test_only_what_appears_later_counts_as_seen(setup: Setup) -> None:
    channel = Replay(json.loads(CAPTURE.read_text())["asked"])
    full = rdma_netlink.read_resources(channel=channel, proc=setup.context.procfs)
    less = RdmaResources(
        summaries=full.summaries, queue_pairs=full.queue_pairs[1:], memory_regions=full.memory_regions[:1], others=()
    )
    collector = RdmaResourcesCollector(setup)

    def seen(details: RdmaResources) -> dict[str, float]:
        samples: list[Sample] = list(collector.samples(details.summaries, details))
        return {one.metric.name: one.value for one in samples if one.labels[1:] == ("rxe0", "demo")}  # type: ignore[misc]

    names = ("kvdiag_rdma_queue_pairs_seen_total", "kvdiag_rdma_memory_regions_seen_total")
    counts = [tuple(seen(details)[name] for name in names) for details in (less, full, less, full)]
    assert counts == [(0, 0), (1, 2), (1, 2), (2, 4)]


def test_many_objects_are_not_dumped_again_while_no_count_changes(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    dumps = []
    read_resources = rdma_netlink.read_resources

    def dump(**options: Any) -> RdmaResources:
        dumps.append(options)
        return read_resources(**options)

    monkeypatch.setattr(rdma_netlink, "read_resources", dump)
    monkeypatch.setattr("kvdiag_exporters.collectors.rdma_resources.FEW", 1)
    collector = RdmaResourcesCollector(setup)
    clock = setup.clock
    assert isinstance(clock, StillClock)
    first = read(collector)
    clock.now_s += 5
    assert read(collector) == first
    assert len(dumps) == 1
    clock.now_s += 6
    assert read(collector) == first
    assert len(dumps) == 2


def test_nixl_files_are_summed_by_rank(setup: Setup) -> None:
    collector = NixlCollector(setup)
    found = read(collector)
    labels = ("prefill-0", "demo", "prefill")
    assert found["kvdiag_nixl_transmit_bytes_total", *labels, "1"] == 83890176
    assert found["kvdiag_nixl_transmit_bytes_total", *labels, "0"] == 0
    assert found["kvdiag_nixl_transmit_bytes_total", *labels, ""] == 3 << 20
    assert found["kvdiag_nixl_registrations_total", *labels, ""] == 1
    assert found["kvdiag_nixl_ring_fill_ratio", *labels, ""] == pytest.approx(14 / 63)
    for rank, transfers in (("1", 41), ("", 3)):
        times = found["kvdiag_nixl_transfer_seconds", *labels, rank]
        assert isinstance(times, Buckets)
        assert sum(times.counts) == transfers
        assert found["kvdiag_nixl_write_transfers_total", *labels, rank] == {"1": 21, "": 3}[rank]
    (folder,) = {one.nixl_telemetry for one in setup.engines}
    assert folder is not None
    (folder / "garbage").write_bytes(b"\0" * 100)
    assert read(collector) == found
    assert "garbage" in collector.missing[0]


def test_pairs_are_bounded_and_impossible_values_are_counted(setup: Setup) -> None:
    collector = RecordsCollector(setup)
    collector.observe(
        [
            TransferRecord(request_id=str(i), arrival_s=0.0, ttft_s=1.0, wire_s=-1.0, decode_node=f"node-{i}")
            for i in range(MOST_SERIES + 10)
        ]
    )
    found = read(collector)
    ttft = {labels: value for labels, value in found.items() if labels[0] == "kvdiag_ttft_seconds"}
    assert len(ttft) == MOST_SERIES + 1
    other = ttft["kvdiag_ttft_seconds", OVERFLOW, OVERFLOW, OVERFLOW]
    assert isinstance(other, Buckets)
    assert sum(other.counts) >= 10
    assert found["kvdiag_records_impossible_values_total",] == MOST_SERIES + 10 + 1  # one more in the file
    assert found["kvdiag_records_dropped_total", "duplicate"] == 1
    assert found["kvdiag_records_dropped_total", "invalid"] == 1
    assert "requests.jsonl, line 5: Object missing required field `request_id`" in collector.missing[0]


def test_what_an_agent_moved_stays_in_the_sum_and_no_sum_is_of_a_part(tmp_path: Path) -> None:
    folder = tmp_path / "nixl"
    shutil.copytree(NIXL / "stores/one-process", folder)  # two agents of rank 3
    shutil.copy(NIXL / "rings/1.5.0/prefill-0", folder)
    setup = Setup(node="h", engines=(Engine(name="e", node="h", nixl_telemetry=folder),))
    collector = NixlCollector(setup)
    states = {"kvdiag_nixl_agents", "kvdiag_nixl_heartbeat_age_seconds", "kvdiag_nixl_ring_fill_ratio"}
    whole = {key: value for key, value in read(collector).items() if key[0] not in states}
    for path in sorted(folder.iterdir()):
        before = path.read_bytes()
        path.write_bytes(b"garbage")
        rank = "3" if path.suffix else ""
        assert {key[0] for key in read(collector) if key[4] == rank} <= states
        path.unlink()
        assert whole.items() <= read(collector).items()
        path.write_bytes(before)
        assert whole.items() <= read(collector).items()
