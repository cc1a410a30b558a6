"""What makes each alert fire, and the same series in good order: every alert must be here.

`lead` is how long things are good first, `slack` how long after `for` the alert may take, both in minutes.
"""

from dataclasses import dataclass

from tests.dashboards.series import Series, counter, flat, gauge, histogram

ENGINE = {"node": "n1", "engine": "e1", "role": "decode"}
OWN = {
    **ENGINE, "source": "vllm", "rank": "0", "kind": "nixl", "grain": "handle", "evidence": "measured",
}  # fmt: skip
PORT = {"node": "n1", "device": "mlx5_0", "port": "1"}
SECOND = {**PORT, "device": "mlx5_1"}
SLOW = {**PORT, "device": "mlx5_2"}
RDMA = {"node": "n1", "device": "mlx5_0", "engine": "e1"}
PAIR = {"prefill_node": "p1", "decode_node": "d1", "direction": "read"}
STAGE = "kvdiag_transfer_stage_seconds"
TTFT = "kvdiag_ttft_seconds"
_RDMA = "kvdiag_rdma_port"
_NETDEV = "kvdiag_netdev"


@dataclass(frozen=True)
class Situation:
    series: list[Series]
    lead: int = 15
    slack: int = 16

    def lines(self) -> list[tuple[str, dict[str, str], list[float]]]:
        """Return name, labels and a value a minute of every series: half an hour in order, half an hour bad."""
        return [(one.name, one.labels, one.numbers(30, 30)) for one in self.series]


def _pairs(slow_s: float, *, others: int) -> list[Series]:
    """Return the transfers of a pair that turns slow beside some that stay quick."""
    found = flat(histogram(STAGE, 60, slow_s, 0.005, **PAIR, stage="wire"))
    for number in range(others):
        other = PAIR | {"decode_node": f"d{number + 2}"}
        found += histogram(STAGE, 60, 0.005, 0.005, **other, stage="wire")
    return found


def _bytes(first: float, second: float, good: float) -> list[Series]:
    """Return the bytes a minute of two ports."""
    found: list[Series] = []
    for port, bad in ((PORT, first), (SECOND, second)):
        names = (f"{_RDMA}_{direction}_bytes_total" for direction in ("transmit", "receive"))
        found += [counter(name, bad, good, **port) for name in names]
    return found


SITUATIONS = {
    "KVTransferOverTCP": Situation(
        flat(
            gauge("kvdiag_transfer_transport", 1, 0, node="n1", direction="receive", transport="tcp"),
            gauge("kvdiag_transfer_transport", 0, 1, node="n1", direction="receive", transport="rdma"),
            gauge("kvdiag_transfer_window_bytes", 6e9, 6e9, node="n1", direction="receive", counted_by="claimed"),
            gauge("kvdiag_transfer_window_bytes", 6.1e9, 1e6, node="n1", direction="receive", counted_by="ip"),
            gauge("kvdiag_transfer_window_bytes", 1e6, 6.1e9, node="n1", direction="receive", counted_by="rdma"),
            gauge(f"{_RDMA}_up", 1, 1, **PORT),
        )
    ),
    "KVTransferFailing": Situation(
        flat(
            counter("kvdiag_engine_transfer_failures_total", 6, **OWN),
            counter("kvdiag_engine_transfer_seconds_count", 60, 60, **OWN),
        )
    ),
    "KVTransferNIXLErrors": Situation(
        flat(
            counter("kvdiag_nixl_errors_total", 1, **ENGINE, rank="0", status="backend"),
            counter("kvdiag_nixl_errors_total", 5, 5, **ENGINE, rank="0", status="canceled"),
        )
    ),
    "KVCacheExpired": Situation(
        flat(
            counter("kvdiag_engine_kv_expired_total", 1, **OWN | {"kind": "request", "grain": "request"}),
            gauge("kvdiag_engine_requests", 40, 2, **OWN | {"kind": "waiting", "grain": "request"}),
        )
    ),
    "KVTransferSlowerThanBefore": Situation(_pairs(0.5, others=0), lead=150),
    "KVTransferEngineSlowerThanBefore": Situation(
        flat(histogram("kvdiag_engine_transfer_seconds", 60, 0.5, 0.005, **OWN)), lead=150
    ),
    "KVTransferPairSlow": Situation(_pairs(0.5, others=4)),
    "KVTransferPostingSlow": Situation(
        flat(
            histogram(STAGE, 60, 0.02, 0.02, **PAIR, stage="wire"),
            histogram(STAGE, 60, 0.05, 0.001, **PAIR, stage="post"),
            histogram(TTFT, 60, 0.3, 0.25, **PAIR),
            counter("kvdiag_transfer_descriptors_count", 60, 60, **PAIR),
            counter("kvdiag_transfer_descriptors_sum", 1.2e6, 6e3, **PAIR),
        )
    ),
    "KVTTFTFromFabric": Situation(
        flat(
            gauge("kvdiag_ttft_variance_share", 0.3, 0.05, cause="fabric.congestion"),
            gauge("kvdiag_ttft_variance_share", 0.25, 0.05, cause="fabric.loss"),
            gauge("kvdiag_ttft_variance_share", 0.4, 0.8, cause="workload.prompt_length"),
        )
    ),
    "KVTTFTFromRegistration": Situation(
        flat(
            gauge("kvdiag_ttft_variance_share", 0.6, 0.0, cause="registration.on_path"),
            gauge("kvdiag_ttft_variance_share", 0.3, 0.8, cause="workload.prompt_length"),
        )
    ),
    "KVFabricPortDown": Situation(flat(gauge(f"{_RDMA}_up", 0, 1, **PORT), gauge(f"{_RDMA}_up", 1, 1, **SECOND))),
    "KVFabricLinkFlap": Situation(
        flat(
            counter(f"{_RDMA}_link_downed_total", 1, **PORT),
            counter(f"{_RDMA}_link_changes_total", 1, **PORT, to="down"),
        )
    ),
    "KVFabricLinkSlow": Situation(
        flat(
            gauge(f"{_RDMA}_speed_bytes_per_second", 1.25e10, 5e10, **PORT),
            gauge(f"{_RDMA}_speed_bytes_per_second", 5e10, 5e10, **SECOND),
            _bytes(6e9, 6e9, 6e9),
        )
    ),
    "KVFabricRetransmissions": Situation(
        flat(
            counter(f"{_RDMA}_retransmits_total", 6e3, 6, **PORT),
            counter(f"{_RDMA}_transmit_packets_total", 6e5, 6e5, **PORT),
        )
    ),
    "KVFabricRetriesExceeded": Situation(flat(counter(f"{_RDMA}_retries_exceeded_total", 1, **PORT))),
    "KVFabricReceiverNotReady": Situation(flat(counter(f"{_RDMA}_rnr_retries_exceeded_total", 1, **PORT))),
    "KVFabricOnePortGuilty": Situation(
        flat(
            counter(f"{_RDMA}_retransmits_total", 600, 6, **PORT),
            counter(f"{_RDMA}_retransmits_total", 6, 6, **SECOND),
            counter(f"{_RDMA}_ack_timeouts_total", 60, 0, **PORT),
        )
    ),
    "KVFabricRailImbalance": Situation(
        flat(
            _bytes(6e10, 6e8, 6e10),
            [gauge(f"{_RDMA}_speed_bytes_per_second", 5e10, 5e10, **port) for port in (PORT, SECOND)],
            # A port for management rests at all times, and is no rail.
            gauge(f"{_RDMA}_speed_bytes_per_second", 1.25e9, 1.25e9, **SLOW),
            [counter(f"{_RDMA}_{end}_bytes_total", 60, 60, **SLOW) for end in ("transmit", "receive")],
        )
    ),
    "KVFabricPausedByNetwork": Situation(
        flat(
            counter(
                f"{_NETDEV}_pause_seconds_total", 12, 0.6, node="n1", device="eth0", direction="receive", priority="3"
            )
        )
    ),
    "KVFabricPausesSenders": Situation(
        flat(
            counter(
                f"{_NETDEV}_pause_seconds_total", 12, 0.6, node="n1", device="eth0", direction="transmit", priority="3"
            )
        )
    ),
    "KVFabricPauseStorm": Situation(flat(counter(f"{_NETDEV}_pause_storms_total", 1, node="n1", device="eth0"))),
    "KVFabricLosslessDiscards": Situation(
        flat(
            counter(f"{_NETDEV}_priority_discards_total", 5, node="n1", device="eth0", priority="3"),
            counter(f"{_NETDEV}_priority_discards_total", 5, 5, node="n1", device="eth0", priority="0"),
            counter(
                f"{_NETDEV}_pause_frames_total", 60, 60, node="n1", device="eth0", direction="transmit", priority="3"
            ),
        )
    ),
    "KVFabricCongestion": Situation(
        flat(
            counter(f"{_RDMA}_cnp_handled_total", 6e4, 60, **PORT),
            counter(f"{_RDMA}_transmit_packets_total", 6e5, 6e5, **PORT),
        )
    ),
    "KVRegistrationInRequests": Situation(
        flat(
            histogram(STAGE, 60, 0.05, 0.001, **PAIR, stage="register"),
            histogram(TTFT, 60, 0.3, 0.25, **PAIR),
        )
    ),
    "KVRegistrationChurn": Situation(
        flat(
            counter("kvdiag_rdma_memory_regions_seen_total", 60, 1, **RDMA),
            counter("kvdiag_rdma_memory_regions_gone_total", 60, 1, **RDMA),
        )
    ),
    "KVRegisteredMemoryGrows": Situation(
        flat(gauge("kvdiag_rdma_memory_region_bytes", 1e10, 1e10, 2e8, **RDMA)), lead=70, slack=70
    ),
    "KVRegistrationRefused": Situation(
        flat(counter("kvdiag_rdma_registration_errors_total", 1, node="n1", device="mlx5_0"))
    ),
    "KVPinnedMemoryNearLimit": Situation(flat(gauge("kvdiag_engine_pinned_memory_ratio", 0.95, 0.5, **ENGINE))),
    "KVGPUWindowNearFull": Situation(
        flat(gauge("kvdiag_gpu_window_used_ratio", 0.97, 0.5, node="n1", gpu="0000:17:00.0"))
    ),
    "KVDeviceObjectsNearLimit": Situation(
        flat(
            gauge("kvdiag_rdma_objects_used_ratio", 0.93, 0.1, node="n1", device="mlx5_0", kind="qp"),
            gauge("kvdiag_rdma_objects_used_ratio", 0.05, 0.05, node="n1", device="mlx5_0", kind="mr"),
            gauge("kvdiag_rdma_queue_pairs", 9000, 100, **RDMA, type="RC", state="RTS"),
        )
    ),
    "KVQueuePairsInError": Situation(
        flat(
            gauge("kvdiag_rdma_queue_pairs", 2, 0, **RDMA, type="RC", state="ERR"),
            gauge("kvdiag_rdma_queue_pairs", 6, 8, **RDMA, type="RC", state="RTS"),
        )
    ),
    "KVQueuePairChurn": Situation(
        flat(
            counter("kvdiag_rdma_queue_pairs_seen_total", 30, 1, **RDMA),
            counter("kvdiag_rdma_queue_pairs_gone_total", 30, 1, **RDMA),
        )
    ),
    "KVDiagExporterDown": Situation(
        flat(gauge("up", 0, 1), gauge("kvdiag_exporter_build_info", 1, 1, version="0.1.0"))
    ),
    "KVDiagCollectorFailing": Situation(flat(gauge("kvdiag_collector_success", 0, 1, collector="nic"))),
    "KVDiagDataStale": Situation(flat(gauge("kvdiag_collector_data_age_seconds", 90, 1, 60, collector="nic"))),
    "KVDiagEngineMetricsUnread": Situation(
        flat(gauge("kvdiag_engine_metrics_up", 0, 1, **ENGINE, target="http://127.0.0.1:8000/metrics"))
    ),
    "KVDiagEngineNamesUnknown": Situation(
        flat(gauge("kvdiag_engine_unmapped_names", 3, 0, **ENGINE, source="vllm")), slack=5
    ),
    "KVDiagRecordsLost": Situation(flat(counter("kvdiag_recorder_lost_lines_total", 4))),
    "KVDiagTelemetryRingFull": Situation(flat(gauge("kvdiag_nixl_ring_fill_ratio", 1, 0.2, **ENGINE, rank="0"))),
    "KVDiagCounterSaturated": Situation(flat(gauge(f"{_RDMA}_saturated", 1, 0, **PORT, counter="port_rcv_data"))),
    "KVDiagFinding": Situation(
        flat(gauge("kvdiag_finding", 1, 0, node="n1", code="FAB002", severity="critical", subject="mlx5_0"))
    ),
}
