"""From Prometheus series of engines and of kvdiag's exporter to histograms of stages and counters, by node.

Names: vLLM 0.11 to 0.33, SGLang 0.5.10 to 0.5.23, kvdiag's exporter. Dynamo passes its engines' series through.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from kvdiag.derive.counters import unwrapped
from kvdiag.model.bundle import CounterSeries, MetricInfo
from kvdiag.model.windows import HistogramSeries

Floats = NDArray[np.float64]


class Series(Protocol):
    """One series of a Prometheus: name, labels, seconds, values."""

    @property
    def name(self) -> str: ...
    @property
    def labels(self) -> dict[str, str]: ...
    @property
    def time_s(self) -> Floats: ...
    @property
    def value(self) -> Floats: ...


@dataclass(frozen=True, slots=True)
class _Histogram:
    """What a histogram holds on a prefill and on a decode engine ("" nothing), and its factor to base units."""

    prefill: str
    decode: str
    scale: float = 1.0
    stage: str = ""


HISTOGRAMS: dict[str, tuple[_Histogram, ...]] = {
    # On a decode engine the queue holds the whole wait for remote KV, and prefill is one step.
    "vllm:request_queue_time_seconds": (_Histogram("queue_s", "kv_wait_s"),),
    "vllm:request_prefill_time_seconds": (_Histogram("prefill_s", "first_step_s"),),
    "vllm:request_prompt_tokens": (_Histogram("prompt_tokens", ""),),
    "vllm:request_prefill_kv_computed_tokens": (_Histogram("uncached_tokens", ""),),
    "vllm:iteration_tokens_total": (_Histogram("batch_tokens", ""),),
    # The side that starts the transfer has it: decode where it pulls, prefill where it pushes.
    "vllm:nixl_xfer_time_seconds": (_Histogram("wire_s", "wire_s"),),
    "vllm:nixl_post_time_seconds": (_Histogram("post_s", "post_s"),),
    "vllm:nixl_bytes_transferred": (_Histogram("bytes", "bytes"),),
    "vllm:nixl_num_descriptors": (_Histogram("descriptors", "descriptors"),),
    "vllm:mooncake_xfer_time_seconds": (_Histogram("wire_s", "wire_s"),),
    "vllm:mooncake_bytes_transferred": (_Histogram("bytes", "bytes"),),
    "vllm:mooncake_num_descriptors": (_Histogram("descriptors", "descriptors"),),
    "sglang:queue_time_seconds": (_Histogram("queue_s", "first_step_s"),),
    "sglang:per_stage_req_latency_seconds": (
        _Histogram("prefill_s", "", stage="prefill_forward"),
        _Histogram("transfer_s", "", stage="prefill_transfer_kv_cache"),
    ),
    "sglang:kv_transfer_alloc_ms": (_Histogram("", "admit_s", 1e-3),),
    "sglang:kv_transfer_total_mb": (_Histogram("bytes", "", 2.0**20),),
}
PAIRED = {
    "kvdiag_ttft_seconds": "ttft_s",
    "kvdiag_transfer_stage_seconds": "",
    "kvdiag_transfer_size_bytes": "bytes",
    "kvdiag_transfer_descriptors": "descriptors",
}
"""Histograms of kvdiag's exporter, per pair of nodes; the stage is a label where the quantity is empty."""
COUNTERS: dict[str, tuple[str, float]] = {
    "kvdiag_ip_receive_bytes_total": ("host.tcp_rx_bytes", 1.0),
    "kvdiag_nixl_registered_bytes_total": ("nixl.registered_bytes", 1.0),
    "kvdiag_nixl_registrations_total": ("reg.mr_registered", 1.0),
    "kvdiag_nixl_transfer_seconds_count": ("nixl.transfers", 1.0),
    "kvdiag_rdma_memory_regions_seen_total": ("reg.mr_registered", 1.0),
    "kvdiag_rdma_port_ack_timeouts_total": ("nic.ack_timeouts", 1.0),
    "kvdiag_rdma_port_cnp_handled_total": ("nic.cnp", 1.0),
    "kvdiag_rdma_port_ecn_marked_packets_total": ("nic.ecn_marked", 1.0),
    "kvdiag_rdma_port_out_of_sequence_total": ("nic.out_of_sequence", 1.0),
    "kvdiag_rdma_port_receive_bytes_total": ("nic.rx_bytes", 1.0),
    "kvdiag_rdma_port_retransmits_total": ("nic.retransmits", 1.0),
    "kvdiag_rdma_port_speed_bytes_per_second": ("nic.link_gbps", 8e-9),
    "kvdiag_rdma_port_symbol_errors_total": ("nic.symbol_errors", 1.0),
    "kvdiag_rdma_port_transmit_bytes_total": ("nic.tx_bytes", 1.0),
    "kvdiag_rdma_queue_pairs_seen_total": ("conn.qp_created", 1.0),
    "kvdiag_tcp_retransmitted_segments_total": ("nic.retransmits", 1.0),
    "node_pressure_cpu_waiting_seconds_total": ("host.cpu_stalled_us", 1e6),
    "node_pressure_io_waiting_seconds_total": ("host.io_stalled_us", 1e6),
    "node_pressure_memory_waiting_seconds_total": ("host.memory_stalled_us", 1e6),
    "sglang:num_decode_prealloc_queue_reqs": ("engine.admit_queue_depth", 1.0),
    "sglang:num_decode_transfer_queue_reqs": ("engine.pulls_in_flight", 1.0),
    "vllm:kv_cache_usage_perc": ("engine.kv_cache_usage", 1.0),
}
STAGED_GAUGES = {
    ("vllm:num_requests_kv_fetch_by_stage", "waiting_to_start"): "engine.pull_queue_depth",
    ("vllm:num_requests_kv_fetch_by_stage", "in_progress"): "engine.pulls_in_flight",
}
CALLS = {
    "kvdiag_rdma_call_seconds_count": ("reg.mr_registered", 1.0),
    "kvdiag_rdma_call_seconds_sum": ("reg.mr_register_us", 1e6),
}
"""Of kvdiag's exporter with `kernel_timing`: exact, where counts of regions seen now and then miss short-lived ones."""
REGISTERING = ("reg_mr", "reg_dmabuf_mr")
"""Calls that register memory. Those that set up queue pairs are not all of them: UCX on mlx5 goes past create_qp."""
STALLED = "kvdiag_host_stalled_seconds_total"
"""Of kvdiag's exporter, by resource; node_exporter has a name for each."""
DECODES = ("vllm:external_prefix_cache_hits_total", "vllm:external_prefix_cache_hits")
"""These grow on engines that fetch KV caches."""
GAUGES = ("depth", "in_flight", "gbps", "usage")
_NODE_LABELS = ("node", "nodename", "kubernetes_node")
_ROLE_LABELS = ("role", "engine_type", "disaggregation_mode")


def wanted_names() -> tuple[str, ...]:
    """Return the names of all series that are of use, as Prometheus stores them."""
    whole = [f"{name}_{part}" for name in (*HISTOGRAMS, *PAIRED) for part in ("sum", "count")]
    gauges = {name for name, _ in STAGED_GAUGES}
    return tuple(sorted({*whole, *COUNTERS, *CALLS, *gauges, *DECODES, STALLED}))


@dataclass(frozen=True, slots=True)
class EngineSeries:
    """Histograms and counters by node, and in one line each what could not be used."""

    histograms: tuple[HistogramSeries, ...]
    counters: tuple[CounterSeries, ...]
    metrics: dict[str, MetricInfo]
    notes: tuple[str, ...]


def engine_series(series: Iterable[Series]) -> EngineSeries:
    """Return what the series say; roles by label, else by whether an engine fetches KV caches."""
    all_ = [one for one in series if len(one.time_s) >= 2]
    decoding = {node_of(one.labels) for one in all_ if one.name in DECODES and np.ptp(one.value) > 0}
    parts: dict[tuple[str, str | None, str | None, str], list[tuple[Series, float]]] = defaultdict(list)
    counters: dict[tuple[str, str], list[CounterSeries]] = defaultdict(list)
    for one in all_:
        base, _, part = one.name.rpartition("_")
        if base in PAIRED and part in ("sum", "count"):
            quantity = PAIRED[base] or f"{one.labels.get('stage', '')}_s"
            pair = (one.labels.get("prefill_node") or None, one.labels.get("decode_node") or None)
            parts[quantity, *pair, part].append((one, 1.0))
        elif base in HISTOGRAMS and part in ("sum", "count"):
            node = node_of(one.labels)
            role = role_of(one.labels) or ("decode" if node in decoding else "prefill")
            for held in HISTOGRAMS[base]:
                quantity = held.prefill if role == "prefill" else held.decode
                if quantity and (not held.stage or one.labels.get("stage") == held.stage):
                    sides = (node, None) if role == "prefill" else (None, node)
                    parts[quantity, *sides, part].append((one, held.scale if part == "sum" else 1.0))
        else:
            metric, scale = _counted(one)
            if metric:
                node = node_of(one.labels)
                found = CounterSeries(
                    node=node,
                    device=one.labels.get("device"),
                    metric=metric,
                    time_s=one.time_s,
                    value=one.value * scale,
                )
                counters[metric, one.name].append(found)
    histograms = _histograms(parts)
    notes = _notes(histograms, decoding)
    used = _one_name_each(counters)
    metrics = {
        one.metric: MetricInfo(kind="gauge" if one.metric.endswith(GAUGES) else "counter", unit="") for one in used
    }
    return EngineSeries(histograms, used, metrics, notes)


def _counted(one: Series) -> tuple[str, float]:
    """Return the counter's name in a bundle and its factor to that unit; an empty name where it is of no use."""
    if one.name == STALLED:
        return f"host.{one.labels.get('resource', '')}_stalled_us", 1e6
    if one.name in CALLS:
        return CALLS[one.name] if one.labels.get("call") in REGISTERING else ("", 1.0)
    return COUNTERS.get(one.name, (STAGED_GAUGES.get((one.name, one.labels.get("stage", "")), ""), 1.0))


def node_of(labels: dict[str, str]) -> str:
    """Return the node of a series: a label that names it, else the host part of `instance`."""
    for name in _NODE_LABELS:
        if labels.get(name):
            return labels[name]
    host, separator, port = labels.get("instance", "").rpartition(":")
    return (
        host if separator and port.isdigit() and host not in ("127.0.0.1", "localhost") else labels.get("instance", "")
    )


def role_of(labels: dict[str, str]) -> str | None:
    """Return prefill or decode where a label says so."""
    return next((one for name in _ROLE_LABELS if (one := labels.get(name, "")) in ("prefill", "decode")), None)


def _histograms(
    parts: dict[tuple[str, str | None, str | None, str], list[tuple[Series, float]]],
) -> tuple[HistogramSeries, ...]:
    """Add up the series (ranks, models, label values) of each quantity and node; pairs leave the engines' own out."""
    paired = {quantity for quantity, prefill, decode, _ in parts if prefill and decode}
    whole_ttft = "ttft_s" in paired
    found = []
    for quantity, prefill, decode, part in sorted(parts, key=str):
        if part != "sum" or (quantity, prefill, decode, "count") not in parts:
            continue
        is_pair = prefill is not None and decode is not None
        if whole_ttft and not is_pair and quantity.endswith("_s"):
            continue
        if not is_pair and quantity in paired:
            continue
        sums, counts = (parts[quantity, prefill, decode, one] for one in ("sum", "count"))
        times = np.unique(np.concatenate([one.time_s for one, _ in (*sums, *counts)]))
        found.append(
            HistogramSeries(
                quantity=quantity,
                prefill_node=prefill,
                decode_node=decode,
                time_s=times,
                total=_added(sums, times),
                count=_added(counts, times),
            )
        )
    return tuple(found)


def _added(series: list[tuple[Series, float]], times: Floats) -> Floats:
    total = np.zeros(len(times))
    for one, scale in series:
        total += scale * np.interp(times, one.time_s, unwrapped(one.value))
    return total


def _one_name_each(counters: dict[tuple[str, str], list[CounterSeries]]) -> tuple[CounterSeries, ...]:
    """Return every counter once per node: where two names say the same of a node, the first in the alphabet."""
    used: list[CounterSeries] = []
    taken: set[tuple[str, str]] = set()
    for (metric, _), found in sorted(counters.items()):
        nodes = {one.node for one in found if (metric, one.node) not in taken}
        used += [one for one in found if one.node in nodes]
        taken |= {(metric, node) for node in nodes}
    return tuple(used)


def _notes(histograms: tuple[HistogramSeries, ...], decoding: set[str]) -> tuple[str, ...]:
    prefill = sorted({one.prefill_node for one in histograms if one.prefill_node})
    decode = sorted({one.decode_node for one in histograms if one.decode_node})
    how = "by label, or by growing vllm:external_prefix_cache_hits" if decoding else "by label"
    return (f"prefill: {', '.join(prefill) or 'none'}; decode: {', '.join(decode) or 'none'} ({how})",)
