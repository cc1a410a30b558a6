"""The Kubernetes pod that a process runs in."""

from dataclasses import dataclass

from kvdiag.model.missing import Missing


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """`uid` from the process's control group; `namespace` and `name` from the kubelet's log folder."""

    uid: str
    container_id: str | Missing
    namespace: str | Missing
    name: str | Missing
