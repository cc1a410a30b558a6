"""Whether network namespaces share the RDMA devices, and what on this host relies on it."""

from dataclasses import dataclass
from typing import Literal

from kvdiag.model.missing import Missing


@dataclass(frozen=True, slots=True, kw_only=True)
class RdmaNamespace:
    """`mode` as `rdma system` shows it; `shared_plugin_pid` the Kubernetes RDMA shared device plugin, None where it is
    not seen; `rdma_cni` whether the rdma CNI plugin is installed in /opt/cni/bin.
    """

    mode: Literal["shared", "exclusive"] | Missing
    origin: str
    shared_plugin_pid: int | None
    rdma_cni: bool
