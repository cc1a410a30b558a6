"""The metrics of kvdiag's exporter that the live view reads."""

TTFT = "kvdiag_ttft_seconds"
STAGE = "kvdiag_transfer_stage_seconds"
SIZE = "kvdiag_transfer_size_bytes"
CAUSES = "kvdiag_ttft_variance_share"

ENGINE_UP = "kvdiag_engine_up"
METRICS_UP = "kvdiag_engine_metrics_up"
ENGINE_TRANSFER = "kvdiag_engine_transfer_seconds"
ENGINE_SIZE = "kvdiag_engine_transfer_size_bytes"
ENGINE_MOVED = "kvdiag_engine_transfer_moved_bytes_total"
ENGINE_FAILURES = "kvdiag_engine_transfer_failures_total"
ENGINE_EXPIRED = "kvdiag_engine_kv_expired_total"
ENGINE_REQUESTS = "kvdiag_engine_requests"
ENGINE_REQUEST = "kvdiag_engine_request_seconds"
NIXL_TRANSFER = "kvdiag_nixl_transfer_seconds"
NIXL_SENT = "kvdiag_nixl_transmit_bytes_total"
NIXL_READ = "kvdiag_nixl_receive_bytes_total"
HANDLE_FAILURES = "kvdiag_handle_failures_total"
CARRIER = "kvdiag_transfer_transport"

PORT_UP = "kvdiag_rdma_port_up"
PORT_SPEED = "kvdiag_rdma_port_speed_bytes_per_second"
PORT_SENT = "kvdiag_rdma_port_transmit_bytes_total"
PORT_RECEIVED = "kvdiag_rdma_port_receive_bytes_total"
RETRANSMITS = ("kvdiag_rdma_port_retransmits_total", "kvdiag_rdma_port_ack_timeouts_total")
OUT_OF_SEQUENCE = ("kvdiag_rdma_port_out_of_sequence_total", "kvdiag_rdma_port_sequence_naks_total")
CONGESTION = ("kvdiag_rdma_port_cnp_handled_total", "kvdiag_rdma_port_ecn_marked_packets_total")
PORT_ERRORS = (
    "kvdiag_rdma_port_receive_errors_total",
    "kvdiag_rdma_port_completion_errors_total",
    "kvdiag_rdma_port_retries_exceeded_total",
    "kvdiag_rdma_port_rnr_retries_exceeded_total",
    "kvdiag_rdma_port_symbol_errors_total",
)
NETDEV_UP = "kvdiag_netdev_up"
NETDEV_SPEED = "kvdiag_netdev_speed_bytes_per_second"
NETDEV_SENT = "kvdiag_netdev_transmit_bytes_total"
NETDEV_RECEIVED = "kvdiag_netdev_receive_bytes_total"
NETDEV_ERRORS = (
    "kvdiag_netdev_receive_errors_total",
    "kvdiag_netdev_transmit_errors_total",
    "kvdiag_netdev_receive_dropped_total",
    "kvdiag_netdev_transmit_dropped_total",
)
PAUSED = "kvdiag_netdev_pause_seconds_total"

OBJECTS = "kvdiag_rdma_engine_objects"
REGION_BYTES = "kvdiag_rdma_memory_region_bytes"
REGIONS_SEEN = "kvdiag_rdma_memory_regions_seen_total"
REGIONS_GONE = "kvdiag_rdma_memory_regions_gone_total"
REFUSED = "kvdiag_rdma_registration_errors_total"
PINNED = "kvdiag_engine_pinned_memory_bytes"
PINNED_LIMIT = "kvdiag_engine_memlock_limit_bytes"
PINNED_RATIO = "kvdiag_engine_pinned_memory_ratio"
USED_RATIO = "kvdiag_rdma_objects_used_ratio"
LIMIT = "kvdiag_rdma_objects_limit"
WINDOW = "kvdiag_gpu_window_bytes"
WINDOW_USED = "kvdiag_gpu_window_used_bytes"
WINDOW_RATIO = "kvdiag_gpu_window_used_ratio"
QUEUE_PAIRS = "kvdiag_rdma_queue_pairs"
PAIRS_SEEN = "kvdiag_rdma_queue_pairs_seen_total"
PAIRS_GONE = "kvdiag_rdma_queue_pairs_gone_total"

FINDING = "kvdiag_finding"
SUCCESS = "kvdiag_collector_success"
RESTART = "kvdiag_exporter_cpu_seconds_total"
"""It only grows while an exporter's process lives."""

WANTED = frozenset(
    name
    for value in tuple(globals().values())
    for name in (value if isinstance(value, tuple) else (value,))
    if isinstance(name, str) and name.startswith("kvdiag_")
)
"""Every metric named above."""
