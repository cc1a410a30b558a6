"""Reading a tree again after some of its files changed: only what looked at them before is read once more.

A source that did not touch a file, nor list its folder, gives what it gave: nothing else of its input has changed. A
test compares this with reading everything.
"""

import functools
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar
from unittest.mock import patch

from kvdiag.model.missing import Missing
from kvdiag.model.snapshot import Snapshot
from kvdiag.sources import base as sources
from kvdiag.sources import tree as tree_module
from kvdiag.sources.base import Context
from kvdiag.sources.tree import Tree

T = TypeVar("T")
PARTS = tuple(sources.discover())
_real = tree_module._real
_link = Tree.link


def read(root: Path) -> Snapshot:
    """Read every source, and let through what it raises."""
    context = Context(root=root, live=False)
    return Snapshot(host=context.host(), time_s=0.0, parts={source.part: source.read(context) for source in PARTS})


class Rereader:
    """Holds what every source read of a tree as it was, and where it looked."""

    def __init__(self, root: Path) -> None:
        self.root = root
        context = Context(root=root, live=False)
        host, self._touched_by_host = _traced(context.host)
        parts: dict[type[object], object] = {}
        self._touched: dict[type[object], set[str]] = {}
        for source in PARTS:
            parts[source.part], self._touched[source.part] = _traced(functools.partial(source.read, context))
        self.whole = Snapshot(host=host, time_s=0.0, parts=parts)

    def again(self, changed: Iterable[Path]) -> Snapshot:
        """Return the tree as it is now that these files, which were no links, have changed."""
        context = Context(root=self.root, live=False)
        places = {place for path in changed for place in (str(path), str(path.parent))}
        parts = {
            source.part: (
                self.whole.parts[source.part] if places.isdisjoint(self._touched[source.part]) else source.read(context)
            )
            for source in PARTS
        }
        host = self.whole.host if places.isdisjoint(self._touched_by_host) else context.host()
        return Snapshot(host=host, time_s=0.0, parts=parts)


def _traced(read: Callable[[], T]) -> tuple[T, set[str]]:
    """Return what `read` gives, and the places that it looked at, links followed and not."""
    touched: set[str] = set()

    def real(path: str) -> str:
        found = _real(path)
        touched.update((found, path))
        return found

    def link(tree: Tree, path: str) -> str | Missing:
        local = tree.root / path.lstrip("/")
        touched.update((str(local), str(Path(os.path.realpath(local.parent), local.name))))
        return _link(tree, path)

    with patch.object(tree_module, "_real", real), patch.object(Tree, "link", link):
        return read(), touched
