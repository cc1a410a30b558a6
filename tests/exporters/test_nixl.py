"""What real NIXL agents did against what kvdiag reads of it, from the store and from the ring."""

import importlib.util
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kvdiag.derive.nixl import transfers
from kvdiag.model.missing import Missing
from kvdiag.sources.nixl_mp import read_stores
from kvdiag.sources.nixl_ring import read_rings
from kvdiag_exporters.catalog import Buckets
from kvdiag_exporters.collectors.base import Engine, Setup
from kvdiag_exporters.collectors.nixl import NixlCollector

pytestmark = [
    pytest.mark.component,
    pytest.mark.skipif(importlib.util.find_spec("nixl_cu12") is None, reason="the wheel nixl-cu12 is not installed"),
]
WRITES, READS, REGIONS = 5, 3, 2
MOVED = 4 * 65536
LABELS = ("host-a", "demo", "both", "")


@contextmanager
def agents(**telemetry: str) -> Iterator[None]:
    """Run two agents that have transferred, and keep them alive."""
    environ = {
        **os.environ, "UCX_TLS": "tcp", "UCX_NET_DEVICES": "lo", "UCX_MODULES": "^efa", "NIXL_LOG_LEVEL": "WARN",
        "NIXL_TELEMETRY_ENABLE": "y", **telemetry,
    }  # fmt: skip
    command = [sys.executable, str(Path(__file__).with_name("nixl_agents.py")), str(WRITES), str(READS), str(REGIONS)]
    with subprocess.Popen(command, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            assert process.stdout.readline() == "done\n"
            yield
        finally:
            process.kill()


def collected(folder: Path) -> dict[tuple[str, ...], float | Buckets]:
    """Return what the collector gives, once NIXL has written out everything (every 0.1 s)."""
    setup = Setup(node="host-a", engines=(Engine(name="demo", node="host-a", nixl_telemetry=folder),))
    deadline = time.monotonic() + 60
    while True:
        collector = NixlCollector(setup)
        found = {(one.metric.name, *one.labels): one.value for one in collector.collect()}
        if found.get(("kvdiag_nixl_read_transfers_total", *LABELS)) == READS:
            assert collector.missing == ()
            return found
        assert time.monotonic() < deadline, found
        time.sleep(0.1)


def check(found: dict[tuple[str, ...], float | Buckets]) -> None:
    for name, expected in {
        "write_transfers_total": WRITES,
        "read_transfers_total": READS,
        "transmit_bytes_total": WRITES * MOVED,
        "receive_bytes_total": READS * MOVED,
        "registered_bytes_total": (REGIONS + 1) << 20,
        "deregistered_bytes_total": 0,
        "dropped_events_total": 0,
    }.items():
        assert found[f"kvdiag_nixl_{name}", *LABELS] == expected, name
    for name in ("transfer", "post"):
        times = found[f"kvdiag_nixl_{name}_seconds", *LABELS]
        assert isinstance(times, Buckets)
        assert sum(times.counts) == WRITES + READS
        assert 0 < times.sum < 60
    errors = [value for labels, value in found.items() if labels[0] == "kvdiag_nixl_errors_total"]
    assert errors == [0.0] * 12


def test_the_store_holds_what_the_agents_did(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with agents(
        NIXL_TELEMETRY_EXPORTER="prometheus_mp", NIXL_TELEMETRY_MULTIPROC_DIR=str(tmp_path),
        NIXL_TELEMETRY_PROMETHEUS_LOCAL="y", NIXL_TELEMETRY_PROMETHEUS_PORT=str(port),
    ):  # fmt: skip
        found = collected(tmp_path)
        check(found)
        assert found["kvdiag_nixl_agents", *LABELS, "live"] == 2
        age_s = found["kvdiag_nixl_heartbeat_age_seconds", *LABELS]
        assert isinstance(age_s, float)
        assert age_s < 10
    # The files outlive the agents; only their heartbeat tells that nobody writes them any more.
    time.sleep(0.5)
    first, second = read_stores(tmp_path, time.monotonic()), read_stores(tmp_path, time.monotonic() + 100)
    assert not isinstance(first, Missing)
    assert not isinstance(second, Missing)
    assert all(isinstance(one.heartbeat_age_s, float) and one.heartbeat_age_s > 0.4 for one in first.stores)
    assert all(isinstance(one.heartbeat_age_s, float) and one.heartbeat_age_s > 100 for one in second.stores)


def test_the_ring_holds_what_the_agents_did_and_keeps_it(tmp_path: Path) -> None:
    with agents(NIXL_TELEMETRY_DIR=str(tmp_path)):
        found = collected(tmp_path)
        check(found)
        assert found["kvdiag_nixl_registrations_total", *LABELS] == REGIONS + 1
        assert found["kvdiag_nixl_agents", *LABELS, "ring"] == 2
        rings = read_rings(tmp_path)
        assert not isinstance(rings, Missing)
        assert [ring.agent for ring in rings.rings] == ["decode-0", "prefill-0"]
        directions = [one.direction for one in transfers(rings.rings[1].events)]
        assert directions == ["write"] * WRITES + ["read"] * READS
        assert {one.bytes for one in transfers(rings.rings[1].events)} == {MOVED}
        assert [ring.read_position for ring in rings.rings] == [0, 0]


def test_a_full_ring_is_told(tmp_path: Path) -> None:
    with agents(NIXL_TELEMETRY_DIR=str(tmp_path), NIXL_TELEMETRY_BUFFER_SIZE="16"):
        setup = Setup(node="host-a", engines=(Engine(name="demo", node="host-a", nixl_telemetry=tmp_path),))
        collector = NixlCollector(setup)
        deadline = time.monotonic() + 60
        while True:
            found = {(one.metric.name, *one.labels): one.value for one in collector.collect()}
            fill = found["kvdiag_nixl_ring_fill_ratio", *LABELS]
            assert isinstance(fill, float)
            if fill > 0.7:  # a transfer's four events are written together or not at all
                break
            assert time.monotonic() < deadline
            time.sleep(0.1)
        written = found["kvdiag_nixl_write_transfers_total", *LABELS]
        assert isinstance(written, float)
        assert written < WRITES + READS
