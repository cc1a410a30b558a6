from dataclasses import dataclass, field

import numpy as np
import pytest
from numpy.typing import NDArray

from kvdiag.derive.counters import CounterBank
from kvdiag.derive.engine_series import engine_series, node_of, wanted_names


@dataclass(frozen=True)
class One:
    name: str
    labels: dict[str, str]
    value: NDArray[np.float64]
    time_s: NDArray[np.float64] = field(default_factory=lambda: np.array([0.0, 15.0, 30.0]))


def _histogram(name: str, labels: dict[str, str], mean: float = 0.1) -> list[One]:
    count = np.array([0.0, 10.0, 20.0])
    return [One(f"{name}_sum", labels, count * mean), One(f"{name}_count", labels, count)]


def _growing(name: str, labels: dict[str, str]) -> One:
    return One(name, labels, np.array([0.0, 5.0, 10.0]))


def test_vllm_roles_are_read_off_who_fetches() -> None:
    p, d = {"instance": "10.0.0.1:8000"}, {"instance": "10.0.0.2:8000"}
    series = [
        *_histogram("vllm:request_queue_time_seconds", p),
        *_histogram("vllm:request_queue_time_seconds", d, 0.3),
        *_histogram("vllm:nixl_xfer_time_seconds", d),
        *_histogram("vllm:request_prompt_tokens", d, 1000.0),
        _growing("vllm:external_prefix_cache_hits_total", d),
    ]
    found = {(one.quantity, one.prefill_node, one.decode_node): one for one in engine_series(series).histograms}
    assert found.keys() == {
        ("queue_s", "10.0.0.1", None),
        ("kv_wait_s", None, "10.0.0.2"),
        ("wire_s", None, "10.0.0.2"),
    }
    assert found["kv_wait_s", None, "10.0.0.2"].total[-1] == pytest.approx(6.0)


def test_ranks_are_added_up() -> None:
    ranks = [{"node": "p", "role": "prefill", "engine": str(n)} for n in range(2)]
    (one,) = engine_series(
        [part for labels in ranks for part in _histogram("vllm:request_queue_time_seconds", labels)]
    ).histograms
    assert one.count[-1] == 40
    assert one.total[-1] == pytest.approx(4.0)


def test_sglang_stages_roles_and_units() -> None:
    p, d = {"instance": "a:30000", "engine_type": "prefill"}, {"instance": "b:30000", "engine_type": "decode"}
    found = engine_series(
        [
            *_histogram("sglang:per_stage_req_latency_seconds", p | {"stage": "prefill_forward"}),
            *_histogram("sglang:per_stage_req_latency_seconds", p | {"stage": "request_process"}),
            *_histogram("sglang:kv_transfer_alloc_ms", d, 40.0),
            *_histogram("sglang:kv_transfer_total_mb", p, 3.0),
            One("sglang:num_decode_transfer_queue_reqs", d, np.array([1.0, 2.0, 3.0])),
        ]
    )
    means = {one.quantity: float(one.total[-1] / one.count[-1]) for one in found.histograms}
    assert means == pytest.approx({"prefill_s": 0.1, "admit_s": 0.04, "bytes": 3 * 2.0**20})
    assert found.metrics["engine.pulls_in_flight"].kind == "gauge"


def test_kvdiags_own_pairs_replace_what_engines_say_of_stages() -> None:
    pair = {"prefill_node": "p", "decode_node": "d", "direction": "pull"}
    found = engine_series(
        [
            *_histogram("kvdiag_ttft_seconds", pair, 0.5),
            *_histogram("kvdiag_transfer_stage_seconds", pair | {"stage": "wire"}, 0.2),
            *_histogram("vllm:request_queue_time_seconds", {"instance": "p:8000"}),
            *_histogram("vllm:request_prompt_tokens", {"instance": "p:8000"}, 100.0),
        ]
    )
    assert {one.quantity for one in found.histograms} == {"ttft_s", "wire_s", "prompt_tokens"}


def test_a_counter_that_two_names_give_is_used_once_per_node() -> None:
    found = engine_series(
        [
            _growing("kvdiag_rdma_port_retransmits_total", {"node": "d", "device": "mlx5_0"}),
            _growing("kvdiag_tcp_retransmitted_segments_total", {"node": "d"}),
            _growing("kvdiag_tcp_retransmitted_segments_total", {"node": "e"}),
            One("kvdiag_rdma_port_speed_bytes_per_second", {"node": "d"}, np.full(3, 12.5e9)),
        ]
    )
    assert sorted((one.metric, one.node) for one in found.counters) == [
        ("nic.link_gbps", "d"),
        ("nic.retransmits", "d"),
        ("nic.retransmits", "e"),
    ]
    assert next(one for one in found.counters if one.metric == "nic.link_gbps").value[0] == pytest.approx(100)


def test_what_the_kernel_was_timed_at_is_evidence_of_registration() -> None:
    def calls(part: str, call: str, engine: str, step: float) -> One:
        labels = {"node": "p", "engine": engine, "call": call}
        return One(f"kvdiag_rdma_call_seconds_{part}", labels, np.array([0.0, step, 2 * step]))

    kinds = [("reg_mr", "a"), ("reg_mr", "b"), ("reg_dmabuf_mr", "a"), ("dereg_mr", "a"), ("create_qp", "a")]
    series = [calls(part, *kind, step) for part, step in (("sum", 0.25), ("count", 30.0)) for kind in kinds]
    found = engine_series([*series, _growing("kvdiag_rdma_memory_regions_seen_total", {"node": "p"})])
    assert {one.metric for one in found.counters} == {"reg.mr_registered", "reg.mr_register_us"}
    bank = CounterBank(found.counters, found.metrics)
    # Two kinds of call and two engines: 3 × 30 registrations in 15 s, each 1/120 s; no regions that were only seen.
    assert bank.mean("reg.mr_registered", "p", 0.0, 15.0) == pytest.approx(6.0)
    assert bank.mean("reg.mr_register_us", "p", 0.0, 15.0) == pytest.approx(50_000.0)
    assert {f"kvdiag_rdma_call_seconds_{part}" for part in ("sum", "count")} <= set(wanted_names())


def test_pressure_of_hosts_comes_from_either_exporter() -> None:
    own = _growing("kvdiag_host_stalled_seconds_total", {"node": "a", "resource": "memory"})
    other = _growing("node_pressure_cpu_waiting_seconds_total", {"instance": "b:9100"})
    found = {(one.node, one.metric): one for one in engine_series([own, other]).counters}
    assert found.keys() == {("a", "host.memory_stalled_us"), ("b", "host.cpu_stalled_us")}
    assert found["b", "host.cpu_stalled_us"].value.tolist() == [0.0, 5e6, 1e7]
    assert {"kvdiag_host_stalled_seconds_total", "node_pressure_io_waiting_seconds_total"} <= set(wanted_names())


def test_nodes_and_names() -> None:
    assert node_of({"instance": "10.0.0.1:8000"}) == "10.0.0.1"
    assert node_of({"instance": "10.0.0.1:8000", "node": "n7"}) == "n7"
    # Two engines on one host are told apart by their ports.
    assert node_of({"instance": "127.0.0.1:8001"}) == "127.0.0.1:8001"
    assert "vllm:nixl_xfer_time_seconds_sum" in wanted_names()
    assert len(set(wanted_names())) == len(wanted_names())
