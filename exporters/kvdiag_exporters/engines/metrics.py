"""The metrics that every engine's own are turned into: one name, unit and meaning, whoever measured."""

from typing import Literal

from kvdiag_exporters.catalog import Kind, Metric, Recorded

LABELS = ("node", "engine", "role", "source", "rank", "kind", "grain", "evidence")
"""`source` who measured it (vllm, nixl, …), `rank` whose it is (empty: the engine's merged or unknown), `kind` which of
them, `grain` what one count is (request, handle, operation, …), `evidence` measured, derived or estimated.
"""

Combine = Literal["sum", "max"]


def _metric(name: str, kind: Kind, help_: str, unit: str = "", recorded: tuple[Recorded, ...] = ()) -> Metric:
    return Metric(name=f"kvdiag_engine_{name}", kind=kind, unit=unit, labels=LABELS, help=help_, recorded=recorded)


def _queue(name: str, role: str, *kinds: str) -> Recorded:
    """Return how requests of some kinds on engines of a role are recorded."""
    return Recorded(name=f"engine.{name}", unit="count", where=(("role", (role,)), ("kind", kinds)))


_QUEUES = (
    _queue("prefill_queue_depth", "prefill", "waiting"),
    _queue("admit_queue_depth", "decode", "kv_allocation", "waiting_capacity"),
    _queue("pull_queue_depth", "decode", "kv_fetch_waiting_to_start"),
    _queue("pulls_in_flight", "decode", "kv_fetch_in_progress", "kv_fetch"),
)


_DEFINED = (
    _metric("request_seconds", "histogram", "Time of requests by kind: ttft, queue, prefill and others.", "seconds"),
    _metric("request_tokens", "histogram", "Tokens of a request by kind."),
    _metric("transfer_seconds", "histogram", "Time of a KV transfer until its engine saw it complete.", "seconds"),
    _metric("transfer_post_seconds", "histogram", "Time of a KV transfer until it was posted.", "seconds"),
    _metric("transfer_wait_seconds", "histogram", "Time waited before or after a KV transfer, by kind.", "seconds"),
    _metric(
        "transfer_upper_bound_seconds",
        "histogram",
        "A time that holds the KV transfer and other work; never the transfer's own.",
        "seconds",
    ),
    _metric("transfer_size_bytes", "histogram", "Bytes of a KV transfer.", "bytes"),
    _metric("transfer_descriptors", "histogram", "Descriptors of a KV transfer."),
    _metric(
        "transfer_rate_bytes_per_second", "histogram", "Speed of a KV transfer, by its engine."
    ),
    _metric("transfer_moved_bytes_total", "counter", "Bytes of KV transfers, on the side that started them.", "bytes"),
    _metric("transfers_total", "counter", "Completed KV transfers, on the side that started them."),
    _metric("transfer_busy_seconds_total", "counter", "Sum of the times of KV transfers; they overlap.", "seconds"),
    _metric("transfer_failures_total", "counter", "Failed KV transfers, handshakes and retries, by kind."),
    _metric("transfer_last_seconds", "gauge", "Time of the last KV transfer; tells nothing of the others.", "seconds"),
    _metric("transfer_last_wait_seconds", "gauge", "Wait before the last KV transfer, by kind.", "seconds"),
    _metric("transfer_last_bytes", "gauge", "Bytes of the last KV transfer.", "bytes"),
    _metric("transfer_last_rate_bytes_per_second", "gauge", "Speed of the last KV transfer."),
    _metric("kv_expired_total", "counter", "KV caches that expired before they were fetched, and late notices."),
    _metric("registered_bytes_total", "counter", "Bytes of memory registered and deregistered, by kind.", "bytes"),
    _metric("telemetry_dropped_total", "counter", "Telemetry events that the library itself dropped."),
    _metric("requests", "gauge", "Requests by state; waiting_… and kv_fetch_… are among the waiting.", "", _QUEUES),
    _metric("request_outcomes_total", "counter", "Requests by outcome."),
    _metric("preemptions_total", "counter", "Requests that lost their KV cache to others."),
    _metric("tokens_total", "counter", "Tokens by kind; those of grain logical are the same on every rank."),
    _metric("kv_usage_ratio", "gauge", "Share of the KV cache in use, the fullest where several are merged.", "ratio"),
    _metric("cache_hit_ratio", "gauge", "Share of the looked up tokens that were found.", "ratio"),
    _metric("cache_operation_seconds", "histogram", "Time of operations of a KV store or lower cache.", "seconds"),
    _metric("cache_size_bytes", "histogram", "Bytes of an operation of a KV store or lower cache.", "bytes"),
    _metric(
        "cache_rate_bytes_per_second", "histogram", "Speed of a KV store or lower cache."
    ),
    _metric("cache_rate_tokens", "histogram", "Speed of a KV store in tokens per second."),
    _metric("cache_moved_bytes_total", "counter", "Bytes that a KV store or lower cache moved, by kind.", "bytes"),
    _metric("cache_busy_seconds_total", "counter", "Sum of the times of a lower cache's operations.", "seconds"),
    _metric("cache_operations_total", "counter", "Operations of a KV store or lower cache."),
    _metric("cache_blocks_total", "counter", "Blocks or keys that a KV store or lower cache handled."),
    _metric("cache_failures_total", "counter", "Failed, skipped or slow operations of a KV store or lower cache."),
    _metric("cache_bytes", "gauge", "Bytes in a KV store by kind, capacity included.", "bytes"),
    _metric("cache_entries", "gauge", "Entries of a KV store."),
)  # fmt: skip

BY_NAME = {one.name: one for one in _DEFINED}


def base_unit(metric: Metric) -> str:
    """Return the metric's unit, also where it is made of two, which Prometheus's names do not call a unit."""
    return "bytes_per_second" if metric.name.endswith("_bytes_per_second") else metric.unit


def combine(metric: Metric) -> Combine:
    """Return how series that differ only in labels left off become one: shares and last values never add up."""
    last = metric.name.startswith("kvdiag_engine_transfer_last_")
    return "max" if metric.kind == "gauge" and (metric.unit == "ratio" or last) else "sum"
