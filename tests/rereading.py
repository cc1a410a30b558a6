"""Reading a tree again after some of its files changed: only what looked at them before is read once more.

A source that did not touch a file, nor list its folder, gives what it gave: nothing else of its input has changed. Of a
source that did, what it asks of other files is answered from memory. A test compares this with reading everything.
"""

import functools
import os
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from kvdiag.model.snapshot import Snapshot
from kvdiag.sources import base as sources
from kvdiag.sources.base import Context
from kvdiag.sources.tree import Tree

PARTS = tuple(sources.discover())
_ASKED = ("exists", "link", "local", "names", "read_bytes", "resolve")
_ORIGINAL: dict[str, Callable[[Tree, str], Any]] = {name: getattr(Tree, name) for name in _ASKED}


def read(root: Path) -> Snapshot:
    """Read every source, and let through what it raises."""
    context = Context(root=root, live=False)
    return Snapshot(host=context.host(), time_s=0.0, parts={source.part: source.read(context) for source in PARTS})


class Rereader:
    """Holds what every source read of a tree as it was, what it asked for, and what it was answered."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._answers: dict[tuple[str, str], Any] = {}
        self._asked: dict[object, set[tuple[str, str]]] = {}
        self._places: dict[tuple[str, str], tuple[str, ...]] = {}
        context = Context(root=root, live=False)
        with self._remembering() as now:
            parts: dict[type[object], object] = {}
            for source in PARTS:
                now.append(self._asked.setdefault(source.part, set()))
                parts[source.part] = source.read(context)
            now.append(self._asked.setdefault("host", set()))
            self.whole = Snapshot(host=context.host(), time_s=0.0, parts=parts)
        self._by_place: dict[str, set[tuple[str, str]]] = {}
        for question, places in self._places.items():
            for place in places:
                self._by_place.setdefault(place, set()).add(question)

    def again(self, changed: Collection[Path]) -> Snapshot:
        """Return the tree as it is now that these files, which were no links, have changed."""
        context = Context(root=self.root, live=False)
        places = [str(path) for path in changed]
        places += [str(path.parent) for path in changed if not os.path.lexists(path)]
        stale = {question for place in places for question in self._by_place.get(place, ())}
        with self._replaying(stale):
            parts = {
                source.part: (
                    self.whole.parts[source.part]
                    if stale.isdisjoint(self._asked[source.part])
                    else source.read(context)
                )
                for source in PARTS
            }
            host = self.whole.host if stale.isdisjoint(self._asked["host"]) else context.host()
        return Snapshot(host=host, time_s=0.0, parts=parts)

    @contextmanager
    def _remembering(self) -> Iterator[list[set[tuple[str, str]]]]:
        now: list[set[tuple[str, str]]] = []

        def ask(name: str, tree: Tree, path: str) -> Any:
            question = (name, path)
            now[-1].add(question)
            if question not in self._answers:
                self._places[question] = self._looked_at(name, path)
                self._answers[question] = _answer(name, tree, path)
            return _given(self._answers[question])

        with _asking(ask):
            yield now

    @contextmanager
    def _replaying(self, stale: Collection[tuple[str, str]]) -> Iterator[None]:
        def ask(name: str, tree: Tree, path: str) -> Any:
            question = (name, path)
            known = self._answers.get(question)
            return _ORIGINAL[name](tree, path) if known is None or question in stale else _given(known)

        with _asking(ask):
            yield

    def _looked_at(self, name: str, path: str) -> tuple[str, ...]:
        """Return where an answer comes from: the entry itself, and what its links lead to."""
        local = f"{self.root}/{path.lstrip('/')}"
        folder, _, last = local.rpartition("/")
        beside = f"{os.path.realpath(folder)}/{last}"
        return (beside,) if name == "link" else (beside, os.path.realpath(local))


def _answer(name: str, tree: Tree, path: str) -> tuple[Any, Exception | None]:
    try:
        return _ORIGINAL[name](tree, path), None
    except (OSError, ValueError, RuntimeError) as error:
        return None, error


def _given(answer: tuple[Any, Exception | None]) -> Any:
    value, error = answer
    if error is not None:
        raise error
    return value


@contextmanager
def _asking(ask: Callable[[str, Tree, str], Any]) -> Iterator[None]:
    with ExitStack() as patched:
        for name in _ASKED:
            # As a plain function of the class, so that it is bound to the tree that asks.
            patched.enter_context(patch.object(Tree, name, _method(ask, name)))
        yield


def _method(ask: Callable[[str, Tree, str], Any], name: str) -> Callable[[Tree, str], Any]:
    @functools.wraps(_ORIGINAL[name])
    def method(tree: Tree, path: str) -> Any:
        return ask(name, tree, path)

    return method
