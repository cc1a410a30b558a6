"""WRITE and READ between two machines deliver verified data, proved to have gone over RDMA."""

import pytest
from jsonschema import validate

from kvdiag.report.json import published_schema
from tests.lab import probing
from tests.lab.probing import Bench
from tests.lab.topology import Wire, second_rail

pytestmark = pytest.mark.lab


@pytest.mark.parametrize("operation", ["write", "read"])
def test_every_payload_arrives_as_sent_and_rdma_carried_it(lab_bench: Bench, operation: str) -> None:
    before = lab_bench.wire.a.counters()
    result = lab_bench.run(f"bandwidth --op {operation} --size 64KiB,1000003 --iterations 60 --warmup 4 --format json")
    document = probing.document(result)
    validate(document, published_schema("kvdiag.probe-1"))
    after = lab_bench.wire.a.counters()
    payload = 60 * (65536 + 1000003)
    assert [row["verified_bytes"] for row in document["results"]] == [60 * 65536, 60 * 1000003]
    counter = "sent_pkts" if operation == "write" else "rcvd_pkts"
    assert after[counter] - before[counter] >= payload // 4096
    assert document["proof"]["status"] == "proved"
    assert document["proof"]["payload_bytes"] > payload
    states = [e["value"] for e in document["proof"]["evidence"] if e["name"].startswith("queue pair")]
    assert states == ["RTS"]
    durations = document["durations"]
    assert all(value > 0 for name, value in durations.items() if name != "stages")
    assert sum(one["seconds"] for one in durations["stages"]) == pytest.approx(durations["total_s"])
    assert document["ends"]["path_mtu"] == 4096
    for row in document["results"]:
        times = row["latency_s"]
        assert 0 < times["minimum"] <= times["p50"] <= times["p90"] <= times["p99"] <= times["p999"] <= times["maximum"]


def test_a_corrupted_payload_is_found_at_its_offset_by_the_far_end(lab_bench: Bench) -> None:
    result = lab_bench.run("bandwidth --size 64KiB --iterations 4 --inject corrupt")
    line = probing.one_line(result, 2)
    assert "wrong bytes (3 bytes at offset 32768 are of no known origin)" in line and "a run of 3 wrong bytes" in line


def test_tcp_moves_the_same_bytes_without_rdma(lab_bench: Bench) -> None:
    before = lab_bench.wire.a.counters()
    result = lab_bench.run("bandwidth --transport tcp --size 64KiB --iterations 60 --warmup 0 --format json")
    document = probing.document(result)
    assert document["proof"]["status"] == "proved"
    assert document["results"][0]["verified_bytes"] == 60 * 65536
    assert document["durations"]["register_s"] is None
    assert lab_bench.wire.a.counters()["sent_pkts"] == before["sent_pkts"]


def test_latency_grows_with_the_size(lab_bench: Bench) -> None:
    document = probing.document(lab_bench.run("latency --op read --size 64,64KiB --iterations 100 --format json"))
    small, large = (row["latency_s"]["p50"] for row in document["results"])
    assert small < large


def test_each_message_of_a_ping_pong_is_answered_and_verified_both_ways(lab_bench: Bench) -> None:
    before = lab_bench.wire.a.counters()
    document = probing.document(
        lab_bench.run("latency --ping-pong --size 64,4KiB --iterations 40 --warmup 4 --format json")
    )
    after = lab_bench.wire.a.counters()
    assert [row["verified_bytes"] for row in document["results"]] == [2 * 40 * 64, 2 * 40 * 4096]
    assert [row["latency_s"]["count"] for row in document["results"]] == [40, 40]
    # Both ends sent a data packet a message, and an acknowledgement of the other's.
    assert all(after[name] - before[name] >= 2 * 80 for name in ("sent_pkts", "rcvd_pkts"))
    assert document["proof"]["status"] == "proved"
    assert (document["ends"]["latency_loop"], document["ends"]["peer_latency_loop"]) == ("compiled", "compiled")


def test_a_probe_leaves_no_object_behind(lab_bench: Bench) -> None:
    before = [probing.objects(end.machine) for end in lab_bench.wire.ends]
    probing.document(lab_bench.run("bandwidth --size 4KiB --iterations 8 --format json"))
    assert [probing.objects(end.machine) for end in lab_bench.wire.ends] == before


@pytest.mark.parametrize(
    ("flags", "streams"),
    [
        ("--op write-imm --qps 4 --batch 2 --signal-every 4 --memory thp", 1),
        ("--op write-imm --queue-depth 1", 1),
        ("--op read --qps 3", 1),
        ("--inline 64 --check-ordering 8", 1),
        ("--bidirectional", 2),
        ("--op read --bidirectional --qps 2", 2),
        ("--op write-imm --bidirectional", 2),
        ("--device rxe0,rxe0", 2),
    ],
)
def test_each_way_of_transferring_delivers_every_byte(lab_bench: Bench, flags: str, streams: int) -> None:
    """Bytes at both ends, immediates and flags were all compared; the counters prove what carried them."""
    document = probing.document(
        lab_bench.run(f"bandwidth {flags} --size 64,16KiB --iterations 40 --warmup 0 --format json")
    )
    validate(document, published_schema("kvdiag.probe-1"))
    assert [row["verified_bytes"] for row in document["results"]] == [40 * 64 * streams, 40 * 16384 * streams]
    assert document["proof"]["status"] == "proved"
    assert len(document["ends"]["rails"]) == ("," in flags)
    both = [row["reverse_bytes_per_second"] for row in document["results"]]
    assert all(both) if "--bidirectional" in flags else both == [None, None]
    assert (document["ordering"] or {}).get("rounds") == (8 if "ordering" in flags else None)
    assert ("transparent" in document["ends"]["local_memory"]) == ("thp" in flags)
    assert document["ends"]["completion_timestamps"] == "not offered by this device"


def test_two_devices_as_rails_carry_as_much_each(lab_pair: Wire) -> None:
    near, far = lab_pair.ends
    with second_rail(lab_pair) as rail, probing.agent(far, "--idle 10 --device rxe0,rxe1"):
        devices = (near, rail.a)
        before = [end.counters()["sent_pkts"] for end in devices]
        flags = "--device rxe0,rxe1 --size 16KiB --iterations 40 --warmup 0 --timeout 60 --format json"
        document = probing.document(probing.probe(near, far, f"bandwidth {flags}"))
        sent = [end.counters()["sent_pkts"] - count for end, count in zip(devices, before, strict=True)]
    assert document["results"][0]["verified_bytes"] == 2 * 40 * 16384
    assert (document["proof"]["status"], len(document["ends"]["rails"])) == ("proved", 1)
    # The payload is a packet for each path MTU, and a first transfer of one message.
    assert all(41 * 4 <= packets < 2 * 41 * 4 for packets in sent), sent


def test_raw_samples_are_written_as_they_were_taken(lab_bench: Bench) -> None:
    document = probing.document(
        lab_bench.run("latency --size 64 --iterations 50 --samples /tmp/samples.csv --format json")
    )
    head, *rows = lab_bench.wire.a.machine.get("/tmp/samples.csv").decode().splitlines()
    assert head == "size_bytes,seconds"
    seconds = [float(row.removeprefix("64,")) for row in rows]
    times = document["results"][0]["latency_s"]
    assert len(seconds) == times["count"] == 50
    assert (min(seconds), max(seconds)) == pytest.approx((times["minimum"], times["maximum"]), abs=1e-9)
