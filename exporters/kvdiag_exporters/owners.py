"""Which engine a process belongs to."""

from kvdiag.model.missing import Missing
from kvdiag.sources.process import read_process
from kvdiag_exporters.collectors.base import Setup

OTHER = "(other)"
"""Engine label of what no configured engine owns."""


class Owners:
    """Engines by process: a process is the engine's own, or a descendant of it. Each is looked up once."""

    def __init__(self, setup: Setup) -> None:
        self._tree = setup.tree
        self._engines = {one.pid: one.name for one in setup.engines if one.pid is not None}
        self._known: dict[int, str] = {}

    def engine(self, pid: int) -> str:
        """Return the engine's name, OTHER where it is none's."""
        if pid not in self._known:
            self._known[pid] = self._find(pid)
        return self._known[pid]

    def _find(self, pid: int) -> str:
        ancestor = pid
        while ancestor > 1 and self._engines:
            if ancestor in self._engines:
                return self._engines[ancestor]
            process = read_process(self._tree, ancestor)
            if isinstance(process, Missing):
                break
            ancestor = process.parent_pid
        return OTHER
