"""Kernel release, modules, memory and the NVIDIA driver's version text from /proc."""

import re

from kvdiag.model.kernel import Kernel
from kvdiag.model.missing import Missing
from kvdiag.sources.base import Context
from kvdiag.sources.tree import Tree


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
            release=_line(tree, "/proc/sys/kernel/osrelease"),
            modules=modules if isinstance(modules, Missing) else _first_words(modules),
            memory_bytes=_meminfo(tree, "MemTotal", 1024),
            nvidia_version=_line(tree, "/proc/driver/nvidia/version"),
            huge_pages=_meminfo(tree, "HugePages_Total", 1),
            huge_page_bytes=_meminfo(tree, "Hugepagesize", 1024),
        )


def _first_words(text: str) -> tuple[str, ...]:
    return tuple(sorted(line.split()[0] for line in text.splitlines() if line.strip()))


def _meminfo(tree: Tree, name: str, unit: int) -> int | Missing:
    """Return a value of /proc/meminfo in bytes or, with a unit of 1, as a count."""
    text = tree.read("/proc/meminfo")
    if isinstance(text, Missing):
        return text
    match = re.search(rf"^{name}:\s+(\d{{1,18}})\b", text, re.MULTILINE)
    return int(match[1]) * unit if match else Missing(f"/proc/meminfo has no line {name}")


def _line(tree: Tree, path: str) -> str | Missing:
    text = tree.read(path)
    return Missing(f"{path} is empty") if text == "" else text


SOURCE = KernelSource()
