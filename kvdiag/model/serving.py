"""The processes that serve the model, and the environments that decide how they move KV blocks."""

from dataclasses import dataclass
from typing import Literal

from kvdiag.model.missing import Missing

ENVIRONMENT_NAMES = frozenset(
    (
        "CUDA_VISIBLE_DEVICES",
        "FI_EFA_USE_DEVICE_RDMA",
        "FI_EFA_USE_HUGE_PAGE",
        "FI_HMEM_CUDA_USE_DMABUF",
        "FI_PROVIDER",
        "HIP_VISIBLE_DEVICES",
        "MC_ENABLE_DEST_DEVICE_AFFINITY",
        "MC_ENABLE_PARALLEL_REG_MR",
        "MC_FORCE_HCA",
        "MC_FORCE_TCP",
        "MC_GID_INDEX",
        "MC_IB_SL",
        "MC_IB_TC",
        "MC_MS_AUTO_DISC",
        "MC_MTU",
        "MC_TE_METRIC",
        "MOONCAKE_DEVICE",
        "MOONCAKE_GLOBAL_SEGMENT_SIZE",
        "MOONCAKE_PROTOCOL",
        "MORI_IB_GID_INDEX",
        "MORI_IO_DISABLE_ATOMIC_MR",
        "MORI_RDMA_DEVICES",
        "NCCL_IB_GID_INDEX",
        "NCCL_IB_HCA",
        "NCCL_IB_PCI_RELAXED_ORDERING",
        "NCCL_IB_SL",
        "NCCL_IB_TC",
        "NCCL_IB_TIMEOUT",
        "NIXL_TELEMETRY_ENABLE",
        "NIXL_TELEMETRY_EXPORTER",
        "NIXL_TELEMETRY_PROMETHEUS_PORT",
        "PYTORCH_ALLOC_CONF",
        "PYTORCH_CUDA_ALLOC_CONF",
        "ROCR_VISIBLE_DEVICES",
        "SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT",
        "SGLANG_DISAGGREGATION_NIXL_BACKEND",
        "SGLANG_DISAGGREGATION_WAITING_TIMEOUT",
        "TRTLLM_NIXL_KVCACHE_BACKEND",
        "TRTLLM_USE_MOONCAKE_KVCACHE",
        "TRTLLM_USE_MPI_KVCACHE",
        "TRTLLM_USE_NIXL_KVCACHE",
        "TRTLLM_USE_UCX_KVCACHE",
        "UCX_CUDA_IPC_ENABLE_MNNVL",
        "UCX_IB_GID_INDEX",
        "UCX_IB_PATH_MTU",
        "UCX_IB_PCI_RELAXED_ORDERING",
        "UCX_IB_REG_METHODS",
        "UCX_IB_ROCE_LOCAL_SUBNET",
        "UCX_IB_SL",
        "UCX_IB_TRAFFIC_CLASS",
        "UCX_MAX_RMA_RAILS",
        "UCX_MAX_RNDV_RAILS",
        "UCX_MEM_MMAP_HOOK_MODE",
        "UCX_NET_DEVICES",
        "UCX_RCACHE_MAX_UNRELEASED",
        "UCX_TLS",
        "VLLM_ATTENTION_BACKEND",
        "VLLM_HOST_IP",
        "VLLM_KV_CACHE_LAYOUT",
        "VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT",
        "VLLM_MOONCAKE_BOOTSTRAP_PORT",
        "VLLM_NIXL_ABORT_REQUEST_TIMEOUT",
        "VLLM_NIXL_SIDE_CHANNEL_HOST",
        "VLLM_NIXL_SIDE_CHANNEL_PORT",
    )
)
"""The only variables ever read out of an environment: environments hold secrets, so names are listed, not matched."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Variable:
    name: str
    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """The whitelisted variables that kvdiag itself was started with; `origin` says where they were read."""

    variables: tuple[Variable, ...]
    origin: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingProcess:
    """`engine` is vllm, sglang, ... or "unknown" for a --pid of no known engine; `command` has its secrets removed.

    `memlock` is the soft limit in bytes; `cap_eff` the effective capability bits; `groups` every group id;
    `initial_user_namespace` whether its capabilities count for the kernel's global checks; `network` names its network
    namespace, as net:[4026531840].
    """

    pid: int
    engine: str
    command: tuple[str, ...]
    uid: int | Missing
    groups: tuple[int, ...] | Missing
    memlock: int | Literal["unlimited"] | Missing
    cap_eff: int | Missing
    initial_user_namespace: bool | Missing
    cgroup: str | Missing
    network: str | Missing
    variables: tuple[Variable, ...] | Missing

    @property
    def name(self) -> str:
        return f"{self.engine} process {self.pid}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingProcesses:
    """Sorted by pid; empty where none of the visible processes is a known engine."""

    processes: tuple[ServingProcess, ...]
