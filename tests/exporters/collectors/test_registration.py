"""Registrations that come and go, and the limits that they meet."""

import json
from pathlib import Path

import pytest

from kvdiag.model.missing import Missing
from kvdiag.model.rdma_resources import RdmaResources
from kvdiag.model.verbs import VerbsDevice, VerbsDevices
from kvdiag.sources import rdma_netlink, verbs_devices
from kvdiag.sources.base import Context
from kvdiag_exporters.collectors.base import Setup
from kvdiag_exporters.collectors.engine_process import EngineProcessCollector
from kvdiag_exporters.collectors.rdma_limits import ASK_EVERY_S, RdmaLimitsCollector
from kvdiag_exporters.collectors.rdma_resources import RdmaResourcesCollector
from tests.exporters.host import StillClock, write_host
from tests.netlink import CAPTURE, Replay


@pytest.fixture
def setup(tmp_path: Path) -> Setup:
    return write_host(tmp_path)


def test_what_is_deregistered_is_counted_as_what_is_registered(setup: Setup) -> None:
    channel = Replay(json.loads(CAPTURE.read_text())["asked"])
    full = rdma_netlink.read_resources(channel=channel, proc=setup.context.procfs)
    less = RdmaResources(
        summaries=full.summaries, queue_pairs=full.queue_pairs[1:], memory_regions=full.memory_regions[:1], others=()
    )
    collector = RdmaResourcesCollector(setup)

    def totals(details: RdmaResources) -> tuple[float, ...]:
        found: dict[str, float] = {}
        for one in collector.samples(details.summaries, details):
            name = one.metric.name.removeprefix("kvdiag_rdma_")
            found[name] = found.get(name, 0.0) + one.value  # type: ignore[operator]
        return tuple(
            found[f"{kind}_{way}_total"] for kind in ("memory_regions", "queue_pairs") for way in ("seen", "gone")
        )

    regions = len(full.memory_regions) - 1
    assert totals(full) == (0, 0, 0, 0)
    assert totals(less) == (0, regions, 0, 1)
    assert totals(full) == (regions, regions, 1, 1)


def test_pinned_memory_is_held_against_the_limit_of_its_process(setup: Setup) -> None:
    def share() -> list[object]:
        found = EngineProcessCollector(setup).collect()
        return [one.value for one in found if one.metric.name == "kvdiag_engine_pinned_memory_ratio"]

    assert share() == [(1 << 20) / 8388608]
    limits = setup.context.root / "proc/121/limits"
    limits.write_text("Max locked memory         unlimited            unlimited            bytes\n")
    assert share() == []


def test_limits_are_asked_for_now_and_then(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[VerbsDevices | Missing] = [Missing("no libibverbs")]
    asked: list[Context] = []

    def read(self: object, context: Context) -> VerbsDevices | Missing:
        asked.append(context)
        return told[0]

    monkeypatch.setattr(verbs_devices.VerbsDevicesSource, "read", read)
    collector = RdmaLimitsCollector(setup)
    assert list(collector.collect()) == []
    assert collector.missing == ("no libibverbs",)
    device = VerbsDevice(name="mlx5_0", ports=(), limits={"max_qp": 262144, "max_mr": 7, "vendor_part_id": 4129})
    told[0] = VerbsDevices(devices=(device,), origin="libibverbs")
    assert list(collector.collect()) == []
    clock = setup.clock
    assert isinstance(clock, StillClock)
    clock.now_s += ASK_EVERY_S
    assert {one.labels: one.value for one in collector.collect()} == {
        ("host-a", "mlx5_0", "qp"): 262144, ("host-a", "mlx5_0", "mr"): 7,
    }  # fmt: skip
    assert len(asked) == 2
    assert not collector.missing


@pytest.mark.parametrize("damaged", ["121/task/121/children", "130/stat", "130/status"])
def test_where_a_child_cannot_be_seen_there_is_no_sum_of_the_rest(setup: Setup, damaged: str) -> None:
    def names() -> set[str]:
        return {one.metric.name for one in EngineProcessCollector(setup).collect()}

    whole = names()
    path = setup.context.root / "proc" / damaged
    before = path.read_text()
    path.write_text("N/A\n")
    assert names() == {"kvdiag_engine_up", "kvdiag_engine_start_time_seconds", "kvdiag_engine_memlock_limit_bytes"}
    path.write_text(before)
    assert names() == whole


def test_a_child_that_has_ended_is_no_longer_counted(setup: Setup) -> None:
    (setup.context.root / "proc/130/stat").unlink()
    found = {one.metric.name: one.value for one in EngineProcessCollector(setup).collect()}
    assert found["kvdiag_engine_processes"] == 1
    assert found["kvdiag_engine_resident_memory_bytes"] == 2 << 20
