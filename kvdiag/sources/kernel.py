"""Kernel release, modules, memory and the NVIDIA driver's version text from /proc."""

import re

from kvdiag.model.kernel import Kernel
from kvdiag.model.missing import Missing
from kvdiag.sources.base import Context
from kvdiag.sources.tree import Tree

_MEMORY = re.compile(r"^MemTotal:\s+(\d+) kB", re.MULTILINE)


class KernelSource:
    """Each attribute is Missing on its own; the whole is Missing where /proc cannot be listed."""

    part = Kernel

    def read(self, context: Context) -> Kernel | Missing:
        tree = Tree.of(context)
        proc = tree.names("/proc")
        if isinstance(proc, Missing):
            return proc
        modules = tree.read("/proc/modules")
        return Kernel(
            release=tree.read("/proc/sys/kernel/osrelease"),
            modules=modules if isinstance(modules, Missing) else _first_words(modules),
            memory_bytes=_memory(tree),
            nvidia_version=tree.read("/proc/driver/nvidia/version"),
        )


def _first_words(text: str) -> tuple[str, ...]:
    return tuple(sorted(line.split()[0] for line in text.splitlines() if line.strip()))


def _memory(tree: Tree) -> int | Missing:
    text = tree.read("/proc/meminfo")
    if isinstance(text, Missing):
        return text
    match = _MEMORY.search(text)
    return int(match[1]) * 1024 if match else Missing("/proc/meminfo has no line MemTotal")


SOURCE = KernelSource()
