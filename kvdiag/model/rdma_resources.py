"""RDMA kernel objects as RDMA netlink shows them."""

from dataclasses import dataclass

from kvdiag.model.missing import Missing

KERNEL_OWNED = Missing("owned by the kernel")
"""The process of an object that the kernel itself made; its `owner` names the module."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceSummary:
    """Counts of live objects of one device by the kernel's own kind names: pd, cq, qp, cm_id, mr, ctx, srq."""

    device: str
    counts: dict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuePair:
    """`pid` is the process (thread-group) id, Missing for kernel-owned objects; `owner` its command name."""

    device: str
    port: int | Missing
    lqpn: int
    rqpn: int | Missing
    type: str
    state: str
    pid: int | Missing
    owner: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRegion:
    """`length` in bytes."""

    device: str
    mrn: int
    length: int
    pid: int | Missing
    owner: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnedCount:
    """How many objects of a kind (pd, cq) one process holds on one device."""

    device: str
    kind: str
    pid: int | Missing
    owner: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RdmaResources:
    summaries: tuple[ResourceSummary, ...]
    queue_pairs: tuple[QueuePair, ...]
    memory_regions: tuple[MemoryRegion, ...]
    others: tuple[OwnedCount, ...]
