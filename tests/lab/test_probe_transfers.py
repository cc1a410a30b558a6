"""WRITE and READ between two machines deliver verified data, proved to have gone over RDMA."""

from collections.abc import Iterator

import pytest
from jsonschema import validate

from kvdiag.report.json import published_schema
from tests.lab import probing
from tests.lab.topology import Wire

pytestmark = pytest.mark.lab


@pytest.fixture(scope="module")
def wire(lab_pair: Wire) -> Iterator[Wire]:
    with probing.agent(lab_pair.b):
        yield lab_pair


@pytest.mark.parametrize("operation", ["write", "read"])
def test_every_payload_arrives_as_sent_and_rdma_carried_it(wire: Wire, operation: str) -> None:
    before = wire.a.counters()
    result = probing.probe(
        wire.a, wire.b, f"bandwidth --op {operation} --size 64KiB,1000003 --iterations 60 --warmup 4 --format json"
    )
    document = probing.document(result)
    validate(document, published_schema("kvdiag.probe-1"))
    after = wire.a.counters()
    payload = 60 * (65536 + 1000003)
    assert [row["verified_bytes"] for row in document["results"]] == [60 * 65536, 60 * 1000003]
    counter = "sent_pkts" if operation == "write" else "rcvd_pkts"
    assert after[counter] - before[counter] >= payload // 4096
    assert document["proof"]["status"] == "proved"
    assert document["proof"]["payload_bytes"] > payload
    states = [e["value"] for e in document["proof"]["evidence"] if e["name"].startswith("queue pair")]
    assert states == ["RTS"]
    durations = document["durations"]
    assert all(durations[name] > 0 for name in durations)
    assert document["ends"]["path_mtu"] == 4096
    for row in document["results"]:
        times = row["latency_s"]
        assert 0 < times["minimum"] <= times["p50"] <= times["p90"] <= times["p99"] <= times["p999"] <= times["maximum"]


def test_a_corrupted_payload_is_found_at_its_offset_by_the_far_end(wire: Wire) -> None:
    result = probing.probe(wire.a, wire.b, "bandwidth --size 64KiB --iterations 4 --inject corrupt")
    line = probing.one_line(result, 2)
    assert "first wrong byte at offset 32768 " in line and "a run of 3 wrong bytes" in line


def test_tcp_moves_the_same_bytes_without_rdma(wire: Wire) -> None:
    before = wire.a.counters()
    result = probing.probe(
        wire.a, wire.b, "bandwidth --transport tcp --size 64KiB --iterations 60 --warmup 0 --format json"
    )
    document = probing.document(result)
    assert document["proof"]["status"] == "proved"
    assert document["results"][0]["verified_bytes"] == 60 * 65536
    assert document["durations"]["register_s"] is None
    assert wire.a.counters()["sent_pkts"] == before["sent_pkts"]


def test_latency_grows_with_the_size(wire: Wire) -> None:
    document = probing.document(
        probing.probe(wire.a, wire.b, "latency --op read --size 64,64KiB --iterations 100 --format json")
    )
    small, large = (row["latency_s"]["p50"] for row in document["results"])
    assert small < large


def test_a_probe_leaves_no_object_behind(wire: Wire) -> None:
    before = [probing.objects(end.machine) for end in wire.ends]
    probing.document(probing.probe(wire.a, wire.b, "bandwidth --size 4KiB --iterations 8 --format json"))
    assert [probing.objects(end.machine) for end in wire.ends] == before
