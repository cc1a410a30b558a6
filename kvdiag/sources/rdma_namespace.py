"""The network namespace mode of the RDMA subsystem, and the Kubernetes plugins that need one or the other."""

import re
from typing import Literal

from kvdiag.errors import UndeterminedError
from kvdiag.model.missing import Missing, present
from kvdiag.model.rdma_namespace import RdmaNamespace
from kvdiag.sources._command import output
from kvdiag.sources._nldev import Attribute, Command, KernelChannel, attributes, number
from kvdiag.sources.base import Context
from kvdiag.sources.tree import Tree

CNI_FOLDER = "/opt/cni/bin"
SHARED_PLUGIN = "k8s-rdma-shared-dp"
"""The program of k8s-rdma-shared-dev-plugin."""
_MODE = re.compile(r"\bnetns\s+(shared|exclusive)\b")


class RdmaNamespaceSource:
    """Asks RDMA netlink when live; a copied tree keeps the output of `rdma system` in `commands/rdma-system.txt`."""

    part = RdmaNamespace

    def read(self, context: Context) -> RdmaNamespace | Missing:
        mode = _from_kernel() if context.live else _from_text(context)
        tree = Tree.of(context)
        pid = _shared_plugin(tree)
        cni = "rdma" in (present(tree.names(CNI_FOLDER)) or ())
        if isinstance(mode, Missing) and isinstance(tree.names("/proc"), Missing):
            return mode
        return RdmaNamespace(mode=mode, origin="rdma system", shared_plugin_pid=pid, rdma_cni=cni)


def _from_kernel() -> Literal["shared", "exclusive"] | Missing:
    try:
        with KernelChannel() as channel:
            replies = channel.ask(Command.SYS_GET, dump=False)
    except UndeterminedError as error:
        return Missing(str(error))
    fields = dict(attributes(replies[0])) if replies else {}
    raw = fields.get(Attribute.SYS_ATTR_NETNS_MODE)
    if raw is None:
        return Missing("RDMA netlink names no network namespace mode (kernels before 5.2)")
    return "shared" if number(raw) else "exclusive"


def _from_text(context: Context) -> Literal["shared", "exclusive"] | Missing:
    said = output(context, "rdma-system", ())
    if isinstance(said, Missing):
        return said
    match = _MODE.search(said.text)
    if match is None:
        return Missing(f"{said.origin} names no network namespace mode")
    return "shared" if match[1] == "shared" else "exclusive"


def _shared_plugin(tree: Tree) -> int | None:
    for pid in sorted(int(name) for name in present(tree.names("/proc")) or () if name.isdecimal()):
        words = (present(tree.read(f"/proc/{pid}/cmdline")) or "").split("\0")
        if words[0].strip().rpartition("/")[2] == SHARED_PLUGIN:
            return pid
    return None


SOURCE = RdmaNamespaceSource()
