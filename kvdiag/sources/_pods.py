"""Which Kubernetes pod a process runs in: its control group has the pod's uid, /var/log/pods the names to it."""

import re

from kvdiag.model.missing import Missing
from kvdiag.model.pod import Pod
from kvdiag.sources.tree import Tree

LOGS = "/var/log/pods"
"""The kubelet keeps a folder NAMESPACE_NAME_UID there for every pod of the node."""

# cgroupfs: /kubepods/burstable/pod<uid>/<container>; systemd: …-pod<uid, _ for ->.slice/containerd-<container>.scope.
# The uid of a static pod is a hash of 32 digits.
_UID = re.compile(r"pod([0-9a-f]{8}(?:[-_]?[0-9a-f]{4}){3}[-_]?[0-9a-f]{12})(?:\.slice)?(?:/|$)")
_CONTAINER = re.compile(r"([0-9a-f]{64})(?:\.scope)?(?:/|$)")


def pod_of(tree: Tree, pid: int) -> Pod | Missing:
    """Return the pod of a process; Missing where it runs in none, or its control group cannot be read."""
    path = f"/proc/{pid}/cgroup"
    text = tree.read(path)
    if isinstance(text, Missing):
        return text
    for line in text.splitlines():
        found = _UID.search(line)
        if found:
            uid = found[1].replace("_", "-")
            container = _CONTAINER.search(line, found.end() - 1)
            namespace, name = _names(tree, uid)
            return Pod(
                uid=uid,
                container_id=container[1] if container else Missing(f"{path} names no container"),
                namespace=namespace,
                name=name,
            )
    return Missing(f"{path} names no pod")


def _names(tree: Tree, uid: str) -> tuple[str | Missing, str | Missing]:
    folders = tree.names(LOGS)
    if isinstance(folders, Missing):
        return folders, folders
    for folder in folders:
        # Neither namespaces nor names nor uids have an underscore.
        parts = folder.split("_")
        if len(parts) == 3 and parts[2] == uid:
            return parts[0], parts[1]
    missing = Missing(f"{LOGS} has no folder of pod {uid}")
    return missing, missing
