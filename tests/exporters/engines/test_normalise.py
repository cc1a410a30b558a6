"""Units, types, twins and contradictions of single series."""

from pathlib import Path

import pytest

from kvdiag_exporters.catalog import Buckets
from kvdiag_exporters.engines.normalise import MOST_VALUES, Normalised, normalise

FIXTURES = Path(__file__).parents[2] / "fixtures/engines"
HEAD = ("node-a", "demo", "prefill")


def read(text: str) -> Normalised:
    return normalise(text, HEAD)


def values(found: Normalised) -> dict[tuple[str, str], float | Buckets]:
    return {(one.metric.name.removeprefix("kvdiag_engine_"), one.labels[5]): one.value for one in found.samples}


HISTOGRAM = """# TYPE sglang:kv_transfer_latency_ms histogram
sglang:kv_transfer_latency_ms_bucket{le="10.0",tp_rank="0"} 2
sglang:kv_transfer_latency_ms_bucket{le="+Inf",tp_rank="0"} 3
sglang:kv_transfer_latency_ms_sum{tp_rank="0"} 1500
sglang:kv_transfer_latency_ms_count{tp_rank="0"} 3
"""


def test_milliseconds_become_seconds_bounds_included() -> None:
    assert values(read(HISTOGRAM))["transfer_seconds", "prefill_to_decode"] == Buckets((0.01,), (2, 1), 1.5)


def test_the_same_name_as_a_gauge_is_the_last_value_only() -> None:
    found = read("# TYPE sglang:kv_transfer_latency_ms gauge\nsglang:kv_transfer_latency_ms 250\n")
    assert values(found) == {("transfer_last_seconds", "prefill_to_decode"): 0.25}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("sglang:kv_transfer_speed_gb_s", 2.0 * 2**30),
        ("sglang:kv_transfer_total_mb", 2.0 * 2**20),
    ],
)
def test_sglangs_giga_and_mega_are_binary(name: str, expected: float) -> None:
    (sample,) = read(f"# TYPE {name} gauge\n{name} 2\n").samples
    assert sample.value == expected
    assert sample.labels[-1] == "derived"


def test_dynamos_giga_is_decimal_and_its_estimate_is_called_one() -> None:
    speed, estimate = "trtllm_kv_transfer_speed_gb_s", "dynamo_frontend_kv_transfer_estimated_latency_seconds"
    text = ""
    for name in (speed, estimate):
        text += f'# TYPE {name} histogram\n{name}_bucket{{le="4"}} 1\n{name}_bucket{{le="+Inf"}} 1\n'
        text += f"{name}_sum 2\n{name}_count 1\n"
    found = read(text)
    assert values(found) == {
        ("transfer_rate_bytes_per_second", "trtllm"): Buckets((4e9,), (1, 0), 2e9),
        ("transfer_upper_bound_seconds", "prefill_to_decode"): Buckets((4.0,), (1, 0), 2.0),
    }
    assert [one.labels[-1] for one in found.samples] == ["derived", "estimated"]


def test_a_newer_name_wins_over_the_one_it_replaces() -> None:
    text = "# TYPE vllm:gpu_cache_usage_perc gauge\nvllm:gpu_cache_usage_perc 0.9\n"
    newer = "# TYPE vllm:kv_cache_usage_perc gauge\nvllm:kv_cache_usage_perc 0.5\n"
    assert values(read(text)) == {("kv_usage_ratio", "gpu"): 0.9}
    assert values(read(text + newer)) == {("kv_usage_ratio", "gpu"): 0.5}


def test_failed_notifications_count_alone_only_where_they_are_not_contained() -> None:
    old = "# TYPE vllm:nixl_num_failed_notifications_total counter\nvllm:nixl_num_failed_notifications_total 2\n"
    later = "vllm:nixl_num_notifications_after_expiry_total"
    new = f"# TYPE {later} counter\n{later} 1\n"
    assert values(read(old)) == {("transfer_failures_total", "nixl_notification"): 2}
    assert values(read(old + new)) == {("kv_expired_total", "late_notification"): 1}


def test_a_counter_and_a_gauge_of_one_name_are_two_things() -> None:
    text = "# TYPE agent_xfer_time_total counter\nagent_xfer_time_total 3000000\n"
    text += "# TYPE agent_xfer_time gauge\nagent_xfer_time 500000\n"
    assert values(read(text)) == {("transfer_busy_seconds_total", "nixl"): 3.0, ("transfer_last_seconds", "nixl"): 0.5}


def test_counts_add_up_over_what_is_left_off_and_shares_do_not() -> None:
    text = """# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{model_name="a",engine="0"} 2
vllm:num_requests_running{model_name="b",engine="0"} 3
vllm:num_requests_running{model_name="a",engine="1"} 7
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{model_name="a",engine="0"} 0.25
vllm:kv_cache_usage_perc{model_name="b",engine="0"} 0.75
"""
    found = {one.labels[4:6]: one.value for one in read(text).samples}
    assert found == {("0", "running"): 5, ("1", "running"): 7, ("0", "gpu"): 0.75}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (HISTOGRAM.replace("} 3\n", "} 1\n", 1), "buckets contradict its count of 3"),
        (HISTOGRAM.replace('_count{tp_rank="0"} 3', '_count{tp_rank="0"} 9'), "buckets contradict its count of 9"),
        (HISTOGRAM.replace('le="+Inf"', 'le="20"'), "without the bucket +Inf"),
        (HISTOGRAM.replace(" 1500", " NaN"), "without a finite sum"),
        (
            "# TYPE vllm:num_preemptions gauge\nvllm:num_preemptions 1\n",
            "vllm:num_preemptions is a gauge, not a counter",
        ),
    ],
)
def test_what_contradicts_itself_is_told_and_left_off(text: str, why: str) -> None:
    found = read(text)
    assert found.samples == []
    assert why in found.broken[0]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\n\n",
        "<!doctype html><title>503</title>",
        '{"a": 1}',
        "\x00\x01\x02",
        '# TYPE vllm:num_preemptions_total counter\nvllm:num_preemptions_total{engine="0" 1\n',
        "# TYPE vllm:num_preemptions_total counter\nvllm:num_preemptions_total x\n",
    ],
)
def test_what_is_no_exposition_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(ValueError, match="no Prometheus exposition") as caught:
        read(text)
    assert "\n" not in str(caught.value)


def test_a_value_that_is_no_number_is_absent() -> None:
    assert read("# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running Nan\n").samples == []


def test_labels_without_bound_are_cut() -> None:
    lines = [f'vllm:request_success_total{{finished_reason="r{n}"}} 1' for n in range(MOST_VALUES + 50)]
    found = read("# TYPE vllm:request_success_total counter\n" + "\n".join(lines) + "\n")
    assert len(found.samples) == MOST_VALUES
    assert found.broken == [f"kvdiag_engine_request_outcomes_total: more than {MOST_VALUES} series"]


def test_what_a_real_store_client_of_mooncake_did_is_read_without_a_gap() -> None:
    """20 puts and 20 gets of 64 KiB. Its latencies of gets have lost the labels of their sum and count."""
    found = read((FIXTURES / "mooncake-store-client.txt").read_text())
    assert (found.unmapped, found.broken, found.sources) == ({}, [], {"mooncake"})
    told = values(found)
    assert told["cache_moved_bytes_total", "load"] == told["cache_moved_bytes_total", "store"] == 20 * 65536
    assert told["cache_operations_total", "rpc_PutStart"] == told["cache_operations_total", "rpc_GetReplicaList"] == 20
    for kind, seconds in (("get", 0.004006), ("read_get_buffer", 0.014467), ("write_put", 0.0403)):
        times = told["cache_operation_seconds", kind]
        assert isinstance(times, Buckets)
        assert sum(times.counts) == 20
        assert times.sum == pytest.approx(seconds)


def test_what_a_real_runtime_of_dynamo_served_is_read_without_a_gap() -> None:
    """8 requests of 5 answers each, 5 ms apart, between a client and a worker."""
    found = read((FIXTURES / "dynamo-runtime.txt").read_text())
    assert (found.unmapped, found.broken, found.sources) == ({}, [], {"dynamo"})
    told = values(found)
    assert told["request_outcomes_total", "worker"] == 8
    times = {kind: told["request_seconds", kind] for kind in ("worker", "request_transit", "first_response")}
    counts = {kind: sum(one.counts) for kind, one in times.items() if isinstance(one, Buckets)}
    assert counts == dict.fromkeys(times, 8)
    worker = times["worker"]
    assert isinstance(worker, Buckets)
    assert worker.sum > 8 * 5 * 0.005
    assert (told["requests", "waiting"], told["requests", "worker_running"]) == (0, 0)


def test_what_sglangs_router_served_is_read_without_a_gap() -> None:
    """6 requests through a real router to a prefill and a decode worker."""
    found = read((FIXTURES / "sglang-router.txt").read_text())
    assert (found.unmapped, found.broken, found.sources) == ({}, [], {"sglang_router"})
    told = values(found)
    total = told["request_seconds", "total"]
    assert told["request_outcomes_total", "routed"] == 6
    assert isinstance(total, Buckets)
    assert (sum(total.counts), round(total.sum, 3)) == (6, 0.3)


def test_sums_without_labels_are_nobodys_where_several_have_buckets() -> None:
    name = "mooncake_transfer_get_latency"
    text = f"# TYPE {name} histogram\n"
    for mode in ("real", "dummy"):
        text += f'{name}_bucket{{client_mode="{mode}",le="+Inf"}} 2\n'
    found = read(f"{text}{name}_sum 5\n{name}_count 4\n")
    assert (found.samples, len(found.broken)) == ([], 3)
