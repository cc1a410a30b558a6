"""Lines of engine logs that mean something for KV transfers, and what is read out of each.

The shapes are those of public reports and of recorded logs: vLLM 0.11 to 0.33, SGLang 0.4 to 0.5, Mooncake 0.3, NIXL
0.7 to 1.5, UCX 1.12 to 1.23, NCCL 2.18 to 2.28, rdma-core's perftest, and the kernel's mlx5, efa and nvidia_peermem.
"""

from dataclasses import dataclass

from kvdiag.derive.log_readers import (
    NIC,
    UCX_HEAD,
    Reader,
    by,
    completion,
    named,
    numbered,
    statistics,
    syndrome,
    with_errno,
)


@dataclass(frozen=True, slots=True)
class Detector:
    """`literal` stands in every such line (it is searched first, it is fast); `read` returns None for another line."""

    kind: str
    literal: bytes
    read: Reader


DETECTORS: tuple[Detector, ...] = (
    # Completions with an error status, whoever reports them.
    Detector(
        "completion",
        b"Process failed for slice",
        completion(
            rf"Process failed for slice \([^()]*?local_nic: (?P<device>{NIC})"
            rf"(?:, peer_nic: (?P<peer>[^@,\s]*)@(?P<peer_device>{NIC}))?[^()]*\): (?P<code>[A-Za-z ]+)",
            named,
            "Mooncake",
        ),
    ),
    Detector(
        "completion",
        b"(synd 0x",
        completion(
            rf" on (?P<device>{NIC}):\d+/\w+ \(synd 0x(?P<code>[0-9a-f]{{1,2}}) vend (?P<vendor>0x[0-9a-f]+)",
            syndrome,
            "UCX",
        ),
    ),
    Detector(
        "completion",
        b"Got completion from peer",
        completion(
            r"Got completion from peer (?P<peer>[^\s<]+)\S* with (?:status=(?:\w+\()?|error )(?P<code>\d{1,2})\b"
            rf"(?:.{{0,80}}?vendor[ _]err[ =](?P<vendor>\d{{1,9}})\b)?(?:.{{0,240}}?\bhca (?P<device>{NIC}))?",
            numbered,
            "NCCL",
        ),
    ),
    Detector(
        "completion",
        b"Got completion with error",
        completion(r"Got completion with error (?P<code>\d{1,2})\b", numbered, "NCCL"),
    ),
    Detector(
        "completion",
        b": QP ",
        completion(
            rf"(?P<device>{NIC})/\d+: QP \d+ error: (?P<code>[A-Za-z ]+) \((?P<vendor>0x[0-9a-f]+) ",
            named,
            "kernel",
        ),
    ),
    Detector(
        "completion",
        b"Failed status ",
        completion(r"Failed status (?P<code>\d{1,2}): wr_id \d+ syndrom (?P<vendor>0x[0-9a-f]+)", numbered, "perftest"),
    ),
    Detector("completion", b"cqe with error", completion(r"cqe with error (?P<code>\d{1,2})\b", numbered, "provider")),
    # Mooncake.
    Detector("nic_disabled", b"mark it inactive", by(rf"in local RNIC \S*?@?(?P<device>{NIC}), mark it inactive")),
    Detector(
        "nic_not_active", b"is not active", by(rf"Context is not active: (?P<device>{NIC})|Device \d+ is not active")
    ),
    Detector("peer_declared_dead", b"is not alive", by(r"mooncake session (?P<peer>[^:\s]+)(?::\d+)? is not alive")),
    Detector("peer_declared_dead", b"it might be dead", by(r"Failed to get kvcache from prefill instance")),
    Detector("no_rdma_device", b"No RDMA devices found", by("No RDMA devices found")),
    Detector("no_rdma_device", b"Found 0 HCAs", by("Topology discovery complete. Found 0 HCAs")),
    Detector("cards_found", b"Topology discovery complete", by(r"Found (?P<number>[1-9]\d{0,3}) HCAs")),
    Detector("tcp_installed", b"TcpTransport: listen", by("TcpTransport: listen on port")),
    Detector("protocol", b"for protocol: ", by(r"for protocol: (?P<protocol>\w+)")),
    Detector(
        "rpc_listening",
        b"Transfer Engine RPC using",
        by(r"Transfer Engine RPC using .{1,40}, listening on (?P<host>\[[0-9a-fA-F:.]+\]|[^:\s]+):(?P<port>\d+)"),
    ),
    # Registration of memory.
    Detector(
        "registration_failed",
        b"Failed to register memory",
        with_errno(
            r"Failed to register memory (?:0x[0-9a-f]+|\d+)?.{0,40}?: (?P<why>[^\[]{1,60}\[\d+\])", reporter="Mooncake"
        ),
    ),
    Detector(
        "registration_failed",
        b"memory registration failed",
        by("Mooncake memory registration failed", reporter="SGLang"),
    ),
    Detector(
        "registration_failed",
        b"ibv_reg_",
        with_errno(
            UCX_HEAD + r"ibv_reg_(?:dmabuf_)?mr\([^)]*\) (?:failed|returned):? (?P<why>[A-Za-z/ ]+)", reporter="UCX"
        ),
    ),
    Detector(
        "registration_failed",
        b"failed to register address",
        with_errno(
            UCX_HEAD + rf"failed to register address 0x[0-9a-f]+ (?:\((?P<memory>[\w-]+)\) )?.{{0,60}}?on "
            rf"md\[\d+\]=(?P<device>{NIC}): (?P<why>[A-Za-z/ ]+)",
            reporter="UCX",
        ),
    ),
    Detector(
        "registration_failed",
        b"Unable to register MR",
        with_errno(r"Unable to register MR of \d{1,20} bytes: (?P<why>[A-Za-z/ ]+)", reporter="libfabric"),
    ),
    Detector("registration_failed", b"registerMem: ", by(r"registerMem: registration failed", reporter="NIXL")),
    Detector(
        "memlock_hint",
        b"set max locked memory",
        by(r"[Pp]lease set max locked memory.{0,60}?\(current: (?P<limit>[^)]+)\)|[Pp]lease set max locked memory"),
    ),
    Detector("gpudirect_off", b"GPUDirect RDMA is disabled", by(r"(?P<memory>cuda|rocm)? ?GPUDirect RDMA is disabled")),
    Detector("dmabuf_supported", b"dmabuf is supported", by(r"dmabuf is supported")),
    # Queue pairs and completion queues.
    Detector(
        "queue_failed",
        b"Failed to create QP",
        with_errno(r"Failed to create QP(?:: (?P<why>[^\[]{1,60}\[\d+\]))?", object="QP"),
    ),
    Detector(
        "queue_failed",
        b"ibv_create_",
        with_errno(r"ibv_create_(?P<object>qp|cq|srq)(?:_ex)?\([^)]*\) failed: (?P<why>[A-Za-z/ ]+)"),
    ),
    Detector(
        "queue_failed",
        b"failed to create ",
        with_errno(UCX_HEAD + r".{0,40}?failed to create (?P<object>\w{1,4} QP)\b.{0,160}?: (?P<why>[A-Za-z/ ]+)"),
    ),
    Detector(
        "queue_limit",
        b"status limits exceeded",
        by(r"CREATE_(?P<object>QP|CQ|MKEY)\(0x[0-9a-f]+\).{0,120}?status limits exceeded\(0x8\)"),
    ),
    Detector(
        "queue_modify_failed",
        b"Failed to modify QP to",
        with_errno(r"Failed to modify QP to (?P<state>INIT|RTR|RTS)(?:.{0,60}?: (?P<why>[^\[\]:]{1,60}\[\d+\]))?"),
    ),
    Detector(
        "gid_query_failed",
        b"ibv_query_gid",
        with_errno(
            rf"ibv_query_gid\(dev=(?P<device>{NIC}) port=\d+ index=(?P<index>\d+)\) failed: (?P<why>[A-Za-z/ ]+)"
        ),
    ),
    # vLLM's connectors and NIXL.
    Detector(
        "kv_expired",
        b"Releasing expired KV blocks",
        by(
            r"retrieved by (?P<retrieved>\d+) (?:decode|remote) worker\(s\)"
            r"(?: (?:within (?P<lease_s>\d+) seconds|before lease expired))?"
        ),
    ),
    Detector(
        "kv_read_after_expiry",
        b"Potentially invalid KV blocks",
        by("Potentially invalid KV blocks for unrecognized request"),
    ),
    Detector(
        "kv_transfer_failed",
        b"NIXL transfer failure",
        by(r"NIXL transfer failure: (?P<type>\w+)(?:.{0,600}?'remote_host': '(?P<peer>[^']+)')?"),
    ),
    Detector(
        "kv_load_failed",
        b"due to KV load failure",
        by(r"request\(s\) due to KV load failure(?: \(failure_policy=(?P<policy>\w+))?"),
    ),
    Detector("kv_statistics", b"KV Transfer metrics:", statistics),
    Detector("engine_id_mismatch", b"engine ID mismatch", by("Remote NIXL agent engine ID mismatch")),
    Detector(
        "loopback_refused", b"onnection refused on localhost", by(r"onnection refused on localhost:(?P<port>\d+)")
    ),
    Detector("compatibility", b"compatibility hash mismatch", by("NIXL compatibility hash mismatch")),
    Detector("compatibility", b"Failed to decode NixlHandshakePayload", by("Failed to decode NixlHandshakePayload")),
    Detector("remote_metadata_failed", b"loadRemoteMD", by(r"loadRemoteMD.{0,160}?(?P<status>NIXL_ERR_\w+)")),
    Detector("nixl_status", b"NIXL_ERR_", by(r"(?P<status>NIXL_ERR_[A-Z_]+)")),
    Detector(
        "notification_unsendable",
        b"could send the inter-agent notifications",
        by("no specified or potential backend could send"),
    ),
    Detector(
        "queue_modify_io",
        b"mlx5dv_devx_obj_modify",
        by(r"mlx5dv_devx_obj_modify\(opcode=0x503\) failed.{0,120}?Remote I/O error"),
    ),
    # Other engines.
    Detector(
        "send_queue_full",
        b"SQ full (batch)",
        by(r"SQ full \(batch\): ep=\d+ depth=(?P<depth>\d+) requested=\d+ max=(?P<most>\d+)"),
    ),
    Detector(
        "cover_missing", b"bufferCoverTargetNum", by(r"bufferCoverTargetNum:\s*0 < targetNum:\s*(?P<targets>\d+)")
    ),
    Detector("hang_stack", b"uct_md_query_tl_resources", by("uct_md_query_tl_resources")),
    # UCX.
    Detector(
        "ucx_lanes",
        b" cfg#",
        by(r"UCX\s+INFO\s+\S+ (?P<where>self|intra-node|inter-node) cfg#\d+ +(?P<lanes>\S.{0,400})"),
    ),
    Detector("ucx_tcp_copy", b"tcp/", by(rf"copy-(?:in|out)[\s|]{{1,20}}tcp/(?P<device>{NIC})")),
    Detector(
        "ucx_pci_rate",
        b"effective throughput",
        by(r"PCIe gen(?P<generation>\d) (?P<lanes>\d{1,2})x, effective throughput (?P<rate>\d{1,7}(?:\.\d+)?)"),
    ),
    Detector(
        "ucx_settings",
        b"UCX_* env variables",
        by(r"env variables?:(?=(?:.{0,2000}?\bUCX_TLS=(?P<UCX_TLS>\S+))?)"),
    ),
    Detector(
        "ucx_no_device",
        b"is not available, please use one or more of",
        by(r"network devices? (?P<devices>'[^']{1,60}'(?:,\s?'[^']{1,60}'){0,15}) (?:is|are) not available"),
    ),
    Detector("ucx_no_am", b"no active messages transport", by(r"no active messages transport to")),
    Detector("version", b"UCX  INFO  Version", by(r"Version (?P<version>\d+(?:\.\d+)+)", name="ucx")),
    Detector("version", b"UCX backend bound to UCX", by(r"bound to UCX (?P<version>\d+(?:\.\d+)+)", name="ucx")),
    Detector(
        "version", b"vLLM API server version", by(r"vLLM API server version (?P<version>\d+(?:\.\d+)+)", name="vllm")
    ),
    Detector("version", b"LLM engine (v", by(r"LLM engine \(v(?P<version>\d+(?:\.\d+)+)", name="vllm")),
    # The kernel's log, where it was given.
    Detector(
        "peermem_symbol",
        b"nvidia_peermem: ",
        by(r"nvidia_peermem: (?P<fault>disagrees about version of|Unknown) symbol (?P<symbol>\w+)"),
    ),
    Detector(
        "registration_failed",
        b"REG_MR (opcode 7)",
        by(
            rf"(?P<device>{NIC}): Failed to process command REG_MR \(opcode 7\) comp_status \d+ err -(?P<errno>\d+)",
            reporter="kernel",
        ),
    ),
)
