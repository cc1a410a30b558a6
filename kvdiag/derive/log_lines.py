"""Lines of engine logs that mean something for KV transfers, and what is read out of each.

The shapes are those of public reports and of recorded logs: vLLM 0.11 to 0.33, SGLang 0.4 to 0.5, Mooncake 0.3, NIXL
0.7 to 1.5, UCX 1.12 to 1.23, NCCL 2.18 to 2.28, rdma-core's perftest, and the kernel's mlx5, efa and nvidia_peermem.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

Fields = dict[str, str]
Numbers = dict[str, float]
Reader = Callable[[str], tuple[Fields, Numbers] | None]

WC_STATUS = {
    "local length error": 1,
    "local qp operation error": 2,
    "local protection error": 4,
    "work request flushed error": 5,
    "wr flushed": 5,
    "memory management operation error": 6,
    "memory bind operation error": 6,
    "bad response error": 7,
    "local access error": 8,
    "local access violation": 8,
    "remote invalid request error": 9,
    "remote invalid request": 9,
    "remote access error": 10,
    "remote operation error": 11,
    "transport retry counter exceeded": 12,
    "rnr retry counter exceeded": 13,
    "remote aborted error": 16,
}
"""Texts of ibv_wc_status_str (libibverbs) and ib_wc_status_msg (kernel) by their number."""
_MLX5_SYNDROME = {
    0x01: 1,
    0x02: 2,
    0x04: 4,
    0x05: 5,
    0x06: 6,
    0x10: 7,
    0x11: 8,
    0x12: 9,
    0x13: 10,
    0x14: 11,
    0x15: 12,
    0x16: 13,
    0x22: 16,
}
"""MLX5_CQE_SYNDROME_* (include/linux/mlx5/cq.h) by IBV_WC_*."""
_ERRNO = {
    "cannot allocate memory": "12",
    "bad address": "14",
    "invalid argument": "22",
    "operation not supported": "95",
    "protocol not supported": "93",
    "connection timed out": "110",
    "input/output error": "5",
    "no such device": "19",
    "permission denied": "13",
    "operation not permitted": "1",
}


@dataclass(frozen=True, slots=True)
class Detector:
    """`literal` stands in every such line (it is searched first, it is fast); `read` returns None for another line."""

    kind: str
    literal: bytes
    read: Reader


def _by(pattern: str, **constant: str) -> Reader:
    """Read the named groups of a pattern, those that took part, and `constant`."""
    compiled = re.compile(pattern)

    def read(line: str) -> tuple[Fields, Numbers] | None:
        match = compiled.search(line)
        if match is None:
            return None
        return {**constant, **{name: text for name, text in match.groupdict().items() if text}}, {}

    return read


def _completion(pattern: str, status: Callable[[Fields], int | None], reporter: str) -> Reader:
    plain = _by(pattern, reporter=reporter)

    def read(line: str) -> tuple[Fields, Numbers] | None:
        found = plain(line)
        number = status(found[0]) if found else None
        if found is None or number is None:
            return None
        fields = {name: text for name, text in found[0].items() if name != "code"}
        return {**fields, "status": str(number)}, {}

    return read


def _named(fields: Fields) -> int | None:
    return WC_STATUS.get(fields["code"].strip().lower())


def _numbered(fields: Fields) -> int | None:
    return int(fields["code"]) or None


def _syndrome(fields: Fields) -> int | None:
    return _MLX5_SYNDROME.get(int(fields["code"], 16))


def _errno(pattern: str, **constant: str) -> Reader:
    """As `_by`, with the group `why` ("Bad address", "Bad address [14]") turned into the field `errno`."""
    plain = _by(pattern, **constant)

    def read(line: str) -> tuple[Fields, Numbers] | None:
        found = plain(line)
        if found is None:
            return None
        fields = dict(found[0])
        why = fields.pop("why", "")
        number = re.search(r"\[(\d+)\]", why)
        errno = number[1] if number else next((code for text, code in _ERRNO.items() if text in why.lower()), "")
        return {**fields, **({"errno": errno} if errno else {})}, {}

    return read


_STATISTIC = {
    "transfers": r"Num successful transfers=(\d+)",
    "mib_each": r"Avg MB per transfer=([\d.]+)",
    "descriptors_each": r"Avg number of descriptors=([\d.]+)",
    "xfer_ms_each": r"Avg xfer time \(ms\)=([\d.]+)",
    "post_ms_each": r"Avg post time \(ms\)=([\d.]+)",
    "failed": r"Num failed transfers=(\d+)",
    "expired": r"Num KV expired reqs=(\d+)",
    "after_expiry": r"Num notifs after expiry=(\d+)",
}


def _statistics(line: str) -> tuple[Fields, Numbers] | None:
    """Return sums, from the averages of one period; MB are 2^20 bytes there (vLLM's nixl/stats.py)."""
    found = {name: re.search(pattern, line) for name, pattern in _STATISTIC.items()}
    value = {name: float(match[1]) for name, match in found.items() if match and re.fullmatch(r"\d+\.?\d*", match[1])}
    if "transfers" not in value:
        return None
    many = value["transfers"]
    return {}, {
        "transfers": many,
        "bytes": many * value.get("mib_each", 0.0) * (1 << 20),
        "descriptors": many * value.get("descriptors_each", 0.0),
        "xfer_s": many * value.get("xfer_ms_each", 0.0) / 1e3,
        "post_s": many * value.get("post_ms_each", 0.0) / 1e3,
        "failed": value.get("failed", 0.0),
        "expired": value.get("expired", 0.0),
        "after_expiry": value.get("after_expiry", 0.0),
    }


_UCX_HEAD = r"UCX\s+(?:ERROR|WARN|FATAL)\s+"
"""Without DIAG and DEBUG: there UCX tells of what it tried before it chose another way."""
_NIC = r"[A-Za-z][\w.-]*"

DETECTORS: tuple[Detector, ...] = (
    # Completions with an error status, whoever reports them.
    Detector(
        "completion",
        b"Process failed for slice",
        _completion(
            rf"Process failed for slice \([^()]*?local_nic: (?P<device>{_NIC})"
            rf"(?:, peer_nic: (?P<peer>[^@,\s]*)@(?P<peer_device>{_NIC}))?[^()]*\): (?P<code>[A-Za-z ]+)",
            _named,
            "Mooncake",
        ),
    ),
    Detector(
        "completion",
        b"(synd 0x",
        _completion(
            rf" on (?P<device>{_NIC}):\d+/\w+ \(synd 0x(?P<code>[0-9a-f]{{1,2}}) vend (?P<vendor>0x[0-9a-f]+)",
            _syndrome,
            "UCX",
        ),
    ),
    Detector(
        "completion",
        b"Got completion from peer",
        _completion(
            r"Got completion from peer (?P<peer>[^\s<]+)\S* with (?:status=(?:\w+\()?|error )(?P<code>\d{1,2})\b"
            rf"(?:.{{0,80}}?vendor[ _]err[ =](?P<vendor>\d+))?(?:.{{0,240}}?\bhca (?P<device>{_NIC}))?",
            _numbered,
            "NCCL",
        ),
    ),
    Detector(
        "completion",
        b"Got completion with error",
        _completion(r"Got completion with error (?P<code>\d{1,2})\b", _numbered, "NCCL"),
    ),
    Detector(
        "completion",
        b": QP ",
        _completion(
            rf"(?P<device>{_NIC})/\d+: QP \d+ error: (?P<code>[A-Za-z ]+) \((?P<vendor>0x[0-9a-f]+) ",
            _named,
            "kernel",
        ),
    ),
    Detector(
        "completion",
        b"Failed status ",
        _completion(
            r"Failed status (?P<code>\d{1,2}): wr_id \d+ syndrom (?P<vendor>0x[0-9a-f]+)", _numbered, "perftest"
        ),
    ),
    Detector(
        "completion", b"cqe with error", _completion(r"cqe with error (?P<code>\d{1,2})\b", _numbered, "provider")
    ),
    # Mooncake.
    Detector("nic_disabled", b"mark it inactive", _by(rf"in local RNIC \S*?@?(?P<device>{_NIC}), mark it inactive")),
    Detector(
        "nic_not_active", b"is not active", _by(rf"Context is not active: (?P<device>{_NIC})|Device \d+ is not active")
    ),
    Detector("peer_declared_dead", b"is not alive", _by(r"mooncake session (?P<peer>[^:\s]+)(?::\d+)? is not alive")),
    Detector("peer_declared_dead", b"it might be dead", _by(r"Failed to get kvcache from prefill instance")),
    Detector("no_rdma_device", b"No RDMA devices found", _by("No RDMA devices found")),
    Detector("no_rdma_device", b"Found 0 HCAs", _by("Topology discovery complete. Found 0 HCAs")),
    Detector("cards_found", b"Topology discovery complete", _by(r"Found (?P<number>[1-9]\d*) HCAs")),
    Detector("tcp_installed", b"TcpTransport: listen", _by("TcpTransport: listen on port")),
    Detector("protocol", b"for protocol: ", _by(r"for protocol: (?P<protocol>\w+)")),
    Detector(
        "rpc_listening",
        b"Transfer Engine RPC using",
        _by(r"Transfer Engine RPC using .{1,40}, listening on (?P<host>\[[0-9a-fA-F:.]+\]|[^:\s]+):(?P<port>\d+)"),
    ),
    # Registration of memory.
    Detector(
        "registration_failed",
        b"Failed to register memory",
        _errno(
            r"Failed to register memory (?:0x[0-9a-f]+|\d+)?.{0,40}?: (?P<why>[^\[]{1,60}\[\d+\])", reporter="Mooncake"
        ),
    ),
    Detector(
        "registration_failed",
        b"memory registration failed",
        _by("Mooncake memory registration failed", reporter="SGLang"),
    ),
    Detector(
        "registration_failed",
        b"ibv_reg_",
        _errno(
            _UCX_HEAD + r"ibv_reg_(?:dmabuf_)?mr\([^)]*\) (?:failed|returned):? (?P<why>[A-Za-z/ ]+)", reporter="UCX"
        ),
    ),
    Detector(
        "registration_failed",
        b"failed to register address",
        _errno(
            _UCX_HEAD + rf"failed to register address 0x[0-9a-f]+ (?:\((?P<memory>[\w-]+)\) )?.{{0,60}}?on "
            rf"md\[\d+\]=(?P<device>{_NIC}): (?P<why>[A-Za-z/ ]+)",
            reporter="UCX",
        ),
    ),
    Detector("registration_failed", b"registerMem: ", _by(r"registerMem: registration failed", reporter="NIXL")),
    Detector(
        "memlock_hint",
        b"set max locked memory",
        _by(r"[Pp]lease set max locked memory.{0,60}?\(current: (?P<limit>[^)]+)\)|[Pp]lease set max locked memory"),
    ),
    Detector(
        "gpudirect_off", b"GPUDirect RDMA is disabled", _by(r"(?P<memory>cuda|rocm)? ?GPUDirect RDMA is disabled")
    ),
    # Queue pairs and completion queues.
    Detector(
        "queue_failed",
        b"Failed to create QP",
        _errno(r"Failed to create QP(?:: (?P<why>[^\[]{1,60}\[\d+\]))?", object="QP"),
    ),
    Detector(
        "queue_failed",
        b"ibv_create_",
        _errno(r"ibv_create_(?P<object>qp|cq|srq)(?:_ex)?\([^)]*\) failed: (?P<why>[A-Za-z/ ]+)"),
    ),
    Detector(
        "queue_failed",
        b"failed to create ",
        _errno(_UCX_HEAD + r".{0,40}?failed to create (?P<object>\w{1,4} QP)\b.{0,160}?: (?P<why>[A-Za-z/ ]+)"),
    ),
    Detector(
        "queue_limit",
        b"status limits exceeded",
        _by(r"CREATE_(?P<object>QP|CQ|MKEY)\(0x[0-9a-f]+\).{0,120}?status limits exceeded\(0x8\)"),
    ),
    Detector(
        "queue_modify_failed",
        b"Failed to modify QP to",
        _errno(r"Failed to modify QP to (?P<state>INIT|RTR|RTS)(?:.{0,60}?: (?P<why>[^\[\]:]{1,60}\[\d+\]))?"),
    ),
    Detector(
        "gid_query_failed",
        b"ibv_query_gid",
        _errno(rf"ibv_query_gid\(dev=(?P<device>{_NIC}) port=\d+ index=(?P<index>\d+)\) failed: (?P<why>[A-Za-z/ ]+)"),
    ),
    # vLLM's connectors and NIXL.
    Detector(
        "kv_expired",
        b"Releasing expired KV blocks",
        _by(
            r"retrieved by (?P<retrieved>\d+) (?:decode|remote) worker\(s\)"
            r"(?: (?:within (?P<lease_s>\d+) seconds|before lease expired))?"
        ),
    ),
    Detector(
        "kv_read_after_expiry",
        b"Potentially invalid KV blocks",
        _by("Potentially invalid KV blocks for unrecognized request"),
    ),
    Detector(
        "kv_transfer_failed",
        b"NIXL transfer failure",
        _by(r"NIXL transfer failure: (?P<type>\w+)(?:.{0,600}?'remote_host': '(?P<peer>[^']+)')?"),
    ),
    Detector(
        "kv_load_failed",
        b"due to KV load failure",
        _by(r"request\(s\) due to KV load failure(?: \(failure_policy=(?P<policy>\w+))?"),
    ),
    Detector("kv_statistics", b"KV Transfer metrics:", _statistics),
    Detector("engine_id_mismatch", b"engine ID mismatch", _by("Remote NIXL agent engine ID mismatch")),
    Detector(
        "loopback_refused", b"onnection refused on localhost", _by(r"onnection refused on localhost:(?P<port>\d+)")
    ),
    Detector("compatibility", b"compatibility hash mismatch", _by("NIXL compatibility hash mismatch")),
    Detector("compatibility", b"Failed to decode NixlHandshakePayload", _by("Failed to decode NixlHandshakePayload")),
    Detector("remote_metadata_failed", b"loadRemoteMD", _by(r"loadRemoteMD.{0,160}?(?P<status>NIXL_ERR_\w+)")),
    Detector("nixl_status", b"NIXL_ERR_", _by(r"(?P<status>NIXL_ERR_[A-Z_]+)")),
    Detector(
        "notification_unsendable",
        b"could send the inter-agent notifications",
        _by("no specified or potential backend could send"),
    ),
    Detector(
        "queue_modify_io",
        b"mlx5dv_devx_obj_modify",
        _by(r"mlx5dv_devx_obj_modify\(opcode=0x503\) failed.{0,120}?Remote I/O error"),
    ),
    # Other engines.
    Detector(
        "send_queue_full",
        b"SQ full (batch)",
        _by(r"SQ full \(batch\): ep=\d+ depth=(?P<depth>\d+) requested=\d+ max=(?P<most>\d+)"),
    ),
    Detector(
        "cover_missing", b"bufferCoverTargetNum", _by(r"bufferCoverTargetNum:\s*0 < targetNum:\s*(?P<targets>\d+)")
    ),
    Detector("hang_stack", b"uct_md_query_tl_resources", _by("uct_md_query_tl_resources")),
    # UCX.
    Detector(
        "ucx_lanes",
        b" cfg#",
        _by(r"UCX\s+INFO\s+\S+ (?P<where>self|intra-node|inter-node) cfg#\d+ +(?P<lanes>\S.{0,400})"),
    ),
    Detector(
        "ucx_settings",
        b"UCX_* env variables",
        _by(r"env variables?:(?=(?:.{0,2000}?\bUCX_TLS=(?P<UCX_TLS>\S+))?)"),
    ),
    Detector(
        "ucx_no_device",
        b"is not available, please use one or more of",
        _by(r"network devices? (?P<devices>'[^']{1,60}'(?:,\s?'[^']{1,60}'){0,15}) (?:is|are) not available"),
    ),
    Detector("ucx_no_am", b"no active messages transport", _by(r"no active messages transport to")),
    Detector("version", b"UCX  INFO  Version", _by(r"Version (?P<version>\d+(?:\.\d+)+)", name="ucx")),
    Detector("version", b"UCX backend bound to UCX", _by(r"bound to UCX (?P<version>\d+(?:\.\d+)+)", name="ucx")),
    Detector(
        "version", b"vLLM API server version", _by(r"vLLM API server version (?P<version>\d+(?:\.\d+)+)", name="vllm")
    ),
    Detector("version", b"LLM engine (v", _by(r"LLM engine \(v(?P<version>\d+(?:\.\d+)+)", name="vllm")),
    # The kernel's log, where it was given.
    Detector(
        "peermem_symbol",
        b"nvidia_peermem: ",
        _by(r"nvidia_peermem: (?P<fault>disagrees about version of|Unknown) symbol (?P<symbol>\w+)"),
    ),
    Detector(
        "registration_failed",
        b"REG_MR (opcode 7)",
        _by(
            rf"(?P<device>{_NIC}): Failed to process command REG_MR \(opcode 7\) comp_status \d+ err -(?P<errno>\d+)",
            reporter="kernel",
        ),
    ),
)
