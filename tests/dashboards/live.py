"""What a real exporter that watches files cannot show: why each panel and metric stays empty then.

A test fails where something named here is shown, and where something not named here is not.
"""

JOB = "live"
_NETLINK = "RDMA netlink answers for the running kernel, which has no RDMA device"
_ETHTOOL = "the drivers' own counters are asked of the running kernel's cards"
_OWN = "for engines that are scraped without the exporter: asked of recorded ones in its own test"
_A_DAY = "compares with the day before"

EMPTY_PANELS = {
    "kvdiag-fabric: Time paused by priority": _ETHTOOL,
    "kvdiag-fabric: Pause frames per second": _ETHTOOL,
    "kvdiag-fabric: Discards by priority, and pause storms": _ETHTOOL,
    "kvdiag-fabric: Registered memory": _NETLINK,
    "kvdiag-fabric: Memory regions": _NETLINK,
    "kvdiag-fabric: Queue pairs by state": _NETLINK,
    "kvdiag-fabric: Time in the kernel, p99": "probes in the kernel are off unless asked for, and need root",
    "kvdiag-overview: Mean wait before and after transfers": "vLLM 0.32 counts no such waits",
    "kvdiag-overview: Transfer, posting and waiting p99": _OWN,
    "kvdiag-overview: Requests waiting": _OWN,
    "kvdiag-overview: Failed and expired per second": _OWN,
    "kvdiag-pair: Time paused by priority": _ETHTOOL,
    "kvdiag-pair: Memory regions and queue pairs that appeared, per second": _NETLINK,
    "kvdiag-pair: Registered memory": _NETLINK,
    "kvdiag-pair: Queue pairs by state": _NETLINK,
    "kvdiag-pair: Transfer time": _OWN,
    "kvdiag-pair: Posting": _OWN,
    "kvdiag-pair: Bytes per transfer": _OWN,
    "kvdiag-pair: Descriptors per transfer": _OWN,
}

MAY_BE_EMPTY = {"kvdiag-exporter: Series that mislead or cannot be"}
"""The engine's histogram of first steps has all its values below the least bound, which misleads once it has enough."""

ABSENT_METRICS = {
    "kvdiag_engine_transfers_total": "NIXL's own counter; vLLM has a histogram instead",
    "kvdiag_rdma_port_retransmits_total": "mlx5 counts it as roce_adp_retrans, which InfiniBand ports do not have",
    "kvdiag_rdma_port_retries_exceeded_total": "mlx5 does not count it",
    "kvdiag_rdma_port_rnr_retries_exceeded_total": "mlx5 does not count it",
    "kvdiag_rdma_port_saturated": "no counter is at its greatest value",
    "kvdiag_netdev_pause_seconds_total": _ETHTOOL,
    "kvdiag_netdev_pause_storms_total": _ETHTOOL,
    "kvdiag_netdev_pause_frames_total": _ETHTOOL,
    "kvdiag_netdev_priority_discards_total": _ETHTOOL,
    "kvdiag_rdma_memory_region_bytes": _NETLINK,
    "kvdiag_rdma_memory_regions_seen_total": _NETLINK,
    "kvdiag_rdma_memory_regions_gone_total": _NETLINK,
    "kvdiag_rdma_queue_pairs": _NETLINK,
    "kvdiag_rdma_queue_pairs_seen_total": _NETLINK,
    "kvdiag_rdma_queue_pairs_gone_total": _NETLINK,
    "kvdiag_rdma_objects_used_ratio": _NETLINK,
    "kvdiag_rdma_registration_errors_total": "only EFA counts it",
    "kvdiag_gpu_window_used_ratio": "no GPU",
    "pair:kvdiag_transfer_seconds:p99_5m_median_1d": _A_DAY,
    "engine:kvdiag_transfer_seconds:p99_5m_median_1d": _A_DAY,
}

GUILTY = {
    "KVTransferPairSlow": {"prefill_node": "prefill-1", "decode_node": "decode-2"},
    "KVFabricRetransmissions": {"node": "gpu-node-7", "device": "mlx5_5", "port": "1"},
    "KVFabricOnePortGuilty": {"node": "gpu-node-7", "device": "mlx5_5", "port": "1"},
    "KVFabricRailImbalance": {"node": "gpu-node-7"},
    "KVPinnedMemoryNearLimit": {"node": "decode-0", "engine": "vllm-decode"},
}
"""The alerts whose condition holds on that host, and what each must name; no other may hold, but for those below."""
MAY_HOLD = {"KVTTFTFromFabric", "KVDiagFinding"}
"""The port's loss is a cause of TTFT's variance, by a share that depends on how many requests there were."""
