"""From readings to rows: what is absent is no zero, what several exporters say, and how each of them fares."""

from kvdiag.sources.exposition import Reading
from kvdiag.top.frame import Watched, build
from tests.top.readings import histogram, reading, track

PAIR = 'prefill_node="p",decode_node="d",direction="pull"'
UP = "kvdiag_exporter_cpu_seconds_total 1"


def pair(time_s: float, count: int, wire_s: float = 0.05) -> Reading:
    bounds = {"0.1": count, "1": count, "+Inf": count}
    return reading(
        time_s,
        UP,
        *histogram("kvdiag_ttft_seconds", PAIR, bounds, 0.2 * count),
        *histogram("kvdiag_transfer_stage_seconds", f'{PAIR},stage="wire"', bounds, wire_s * count),
        *histogram("kvdiag_transfer_stage_seconds", f'{PAIR},stage="queue"', bounds, 9.0 * count),
        *histogram("kvdiag_transfer_size_bytes", PAIR, {"1e6": 0, "+Inf": count}, 1e6 * count),
        f'kvdiag_engine_transfer_failures_total{{node="d",engine="e",kind="nixl"}} {count / 10}',
        f'kvdiag_engine_transfer_failures_total{{node="d",engine="e",kind="prefill_retry"}} {count}',
        f'kvdiag_engine_transfer_failures_total{{node="d",engine="e",kind="cancelled"}} {count}',
    )


def watched(*readings: Reading, url: str = "http://a:1", error: str = "") -> Watched:
    return Watched(url, track(*readings), error)


def test_a_pair_is_told_by_its_transfer_stage_and_its_nodes_failures() -> None:
    (row,) = build([watched(pair(0, 10), pair(10, 30))], 10.0, 2.0).pairs
    assert (row.prefill_node, row.decode_node, row.direction) == ("p", "d", "pull")
    assert row.transfers == 20
    assert row.requests_per_s == 2
    assert row.bytes_per_s == 2e6
    assert row.transfer_share == 0.25
    assert row.failures_per_s == 0.2
    assert row.transfer_p50_s == 0.05


def test_no_traffic_is_a_count_of_zero_and_no_time() -> None:
    (row,) = build([watched(pair(0, 10), pair(10, 10))], 10.0, 2.0).pairs
    assert (row.transfers, row.requests_per_s, row.bytes_per_s) == (0, 0, 0)
    assert row.transfer_p99_s is None
    assert row.transfer_share is None


def test_one_reading_has_no_rates() -> None:
    (row,) = build([watched(pair(0, 10))], 0.0, 2.0).pairs
    assert (row.transfers, row.requests_per_s, row.failures_per_s) == (None, None, None)


def test_what_two_exporters_count_of_a_pair_is_added_and_what_they_read_of_a_host_is_not() -> None:
    port = 'kvdiag_rdma_port_transmit_bytes_total{node="n",device="mlx5_0",port="1"}'
    speed = 'kvdiag_rdma_port_speed_bytes_per_second{node="n",device="mlx5_0",port="1"} 1000'
    both = [
        watched(pair(0, 10), pair(10, 30)),
        watched(pair(0, 10), pair(10, 20), url="http://b:1"),
        watched(reading(0, UP, speed, f"{port} 0"), reading(10, UP, speed, f"{port} 9000"), url="http://c:1"),
        watched(reading(0, UP, speed, f"{port} 0"), reading(10, UP, speed, f"{port} 9000"), url="http://d:1"),
    ]
    document = build(both, 10.0, 2.0)
    assert document.pairs[0].transfers == 30
    (found,) = document.ports
    assert found.transmit_ratio == 0.9
    assert found.receive_bytes_per_s is None


def test_how_exporters_fare() -> None:
    failing = reading(8, UP, 'kvdiag_collector_success{collector="nic"} 0')
    document = build(
        [
            watched(url="http://new:1"),
            watched(pair(0, 1), pair(9, 2), url="http://good:1"),
            watched(pair(0, 1), pair(1, 2), url="http://gone:1", error="Connection refused"),
            watched(failing, url="http://blind:1"),
        ],
        10.0,
        2.0,
    )
    states = {one.url.split("//")[1].split(":")[0]: one for one in document.exporters}
    assert {name: one.state for name, one in states.items()} == {
        "new": "waiting", "good": "fresh", "gone": "failed", "blind": "stale",
    }  # fmt: skip
    assert states["gone"].data_age_s == 9
    assert states["gone"].trouble == ("Connection refused",)
    assert states["blind"].trouble == ("collectors that fail: nic",)
    assert states["new"].data_age_s is None


def test_rows_of_a_silent_exporter_are_stale_and_then_forgotten() -> None:
    gone = watched(pair(0, 10), pair(10, 30), error="Connection refused")
    assert build([gone], 12.0, 2.0).pairs[0].stale is False
    assert build([gone], 60.0, 2.0).pairs[0].stale is True
    assert build([gone], 400.0, 2.0).pairs == ()
    assert build([gone], 400.0, 2.0).exporters[0].data_age_s == 390


def test_queue_pairs_registration_and_findings() -> None:
    lines = (
        UP,
        'kvdiag_rdma_queue_pairs{node="n",device="m",engine="e",type="RC",state="RTS"} 6',
        'kvdiag_rdma_queue_pairs{node="n",device="m",engine="e",type="RC",state="ERR"} 2',
        'kvdiag_rdma_queue_pairs{node="n",device="m",engine="e",type="RC",state="INIT"} 1',
        'kvdiag_rdma_objects_used_ratio{node="n",device="m",kind="qp"} 0.5',
        'kvdiag_rdma_engine_objects{node="n",device="m",engine="e",kind="mr"} 4',
        'kvdiag_rdma_engine_objects{node="n",device="m2",engine="e",kind="mr"} 4',
        'kvdiag_rdma_memory_region_bytes{node="n",device="m",engine="e"} 100',
        'kvdiag_engine_pinned_memory_ratio{node="d",engine="e",role="decode"} 0.95',
        'kvdiag_engine_pinned_memory_bytes{node="d",engine="e",role="decode"} 95',
        'kvdiag_finding{node="n",code="EXP003",severity="warning",subject="m"} 1',
        'kvdiag_finding{node="n",code="EXP001",severity="critical",subject="m"} 1',
        'kvdiag_finding{node="n",code="EXP009",severity="critical",subject="m"} 0',
    )
    told = {"findings": [{"node": "n", "code": "EXP003", "severity": "warning", "subject": "m", "summary": "near"}]}
    document = build([watched(reading(0, *lines, health=told))], 0.0, 2.0)
    (queue,) = document.queue_pairs
    assert (queue.total, queue.ready, queue.error, queue.other, queue.used_ratio) == (9, 6, 2, 1, 0.5)
    (registered,) = document.registration
    assert (registered.node, registered.regions, registered.pinned_ratio) == ("d", 8, 0.95)
    assert registered.registered_per_s is None
    assert [(one.code, one.summary) for one in document.findings] == [("EXP001", ""), ("EXP003", "near")]


def test_what_nobody_serves_is_named() -> None:
    told = build([watched(reading(0, UP))], 0.0, 2.0).missing
    assert [one.partition(":")[0] for one in told] == ["pairs", "engines", "NICs", "registration, queue pairs"]
    assert build([watched()], 0.0, 2.0).missing == ()
