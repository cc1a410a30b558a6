"""Pressure stall information of the host: /proc/pressure/{cpu,memory,io} (Linux 4.20, Documentation/accounting/psi)."""

import re

from kvdiag.model.missing import Missing
from kvdiag.model.pressure import RESOURCES, Pressure
from kvdiag.sources.base import Context
from kvdiag.sources.tree import Tree

_SOME = re.compile(r"^some .*\btotal=(\d+)$", re.MULTILINE)


class PressureSource:
    """What the running host's kernel tells; a kernel booted without `psi=1` may tell nothing."""

    part = Pressure

    def read(self, context: Context) -> Pressure | Missing:
        return read_pressure(Tree.of(context))


def read_pressure(tree: Tree) -> Pressure | Missing:
    """Return the totals of every resource; Missing where the kernel keeps none at all."""
    if isinstance(names := tree.names("/proc/pressure"), Missing):
        return Missing(f"{names.missing} (a kernel without CONFIG_PSI, or booted with psi=0)")
    return Pressure(stalled_s={name: _total_s(tree, name) for name in RESOURCES if name in names})


def _total_s(tree: Tree, name: str) -> float | Missing:
    """Return the microseconds of the line "some" as seconds; a kernel booted without psi refuses to be read."""
    text = tree.read(f"/proc/pressure/{name}")
    if isinstance(text, Missing):
        return text
    found = _SOME.search(text)
    return int(found[1]) / 1e6 if found else Missing(f"/proc/pressure/{name} holds {text[:40]!r}, no total")


SOURCE = PressureSource()
