"""The nodes of /dev/infiniband: mode, owner, and whether kvdiag can open them."""

import os
import re
import stat

from kvdiag.model.missing import Missing
from kvdiag.model.verbs import DeviceNode, DeviceNodes
from kvdiag.sources._command import output
from kvdiag.sources.base import Context
from kvdiag.sources.tree import Tree

FOLDER = "/dev/infiniband"
_LISTED = re.compile(r"^c([rwx-]{9})\S*\s+\d+\s+(\d+)\s+(\d+)\s.*\s(\S+)$", re.MULTILINE)
_SHOWN = re.compile(r"^total \d|^[a-z-][rwxsStT-]{9}|No such file", re.MULTILINE)
_NOT_TRIED = Missing("a node in a copied tree cannot be opened")


class DeviceNodesSource:
    """A copied tree cannot hold nodes: it keeps `ls -ln /dev/infiniband` in `commands/ls-dev-infiniband.txt`."""

    part = DeviceNodes

    def read(self, context: Context) -> DeviceNodes | Missing:
        if not context.live:
            return _from_listing(context)
        tree = Tree.of(context)
        if tree.exists("/dev") and not tree.exists(FOLDER):
            return DeviceNodes(nodes=())
        names = tree.names(FOLDER)
        if isinstance(names, Missing):
            return names
        return DeviceNodes(nodes=tuple(_node(tree, name) for name in names))


def _from_listing(context: Context) -> DeviceNodes | Missing:
    listed = output(context, "ls-dev-infiniband", ("ls", "-ln"), _SHOWN)
    if isinstance(listed, Missing):
        return listed
    found = (
        DeviceNode(name=name, mode=_mode(text), uid=int(uid), gid=int(gid), open_error=_NOT_TRIED)
        for text, uid, gid, name in _LISTED.findall(listed.text)
    )
    return DeviceNodes(nodes=tuple(sorted(found, key=lambda node: node.name)))


def _mode(text: str) -> int:
    return sum(1 << (8 - position) for position, letter in enumerate(text) if letter != "-")


def _node(tree: Tree, name: str) -> DeviceNode:
    path = tree.local(f"{FOLDER}/{name}")
    try:
        status = path.stat()
    except OSError as error:
        why = Missing(f"{FOLDER}/{name}: {error.strerror}")
        return DeviceNode(name=name, mode=why, uid=why, gid=why, open_error=str(error.strerror))
    mode = stat.S_IMODE(status.st_mode)
    # Opening a uverbs node makes an empty file context, no queue pair and no memory region, and is the only way to see
    # the container's device rules; a umad or issm node is left alone, because opening those has effects on the fabric.
    error_text: str | Missing = Missing(f"{FOLDER}/{name} is not opened by kvdiag")
    if name.startswith("uverbs") and stat.S_ISCHR(status.st_mode):
        error_text = _open_error(path.as_posix())
    return DeviceNode(name=name, mode=mode, uid=status.st_uid, gid=status.st_gid, open_error=error_text)


def _open_error(path: str) -> str:
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK))
    except OSError as error:
        return error.strerror or str(error)
    return ""


SOURCE = DeviceNodesSource()
