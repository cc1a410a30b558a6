"""The user-space RDMA providers that are installed: *.driver files and libraries."""

import re

from kvdiag.model.missing import Missing, present
from kvdiag.model.verbs import VerbsProviders
from kvdiag.sources.base import Context
from kvdiag.sources.tree import Tree

_LIBRARY_ROOTS = ("/usr/lib", "/usr/lib64", "/usr/local/lib", "/usr/local/lib64", "/lib", "/lib64")
_PROVIDER = re.compile(r"lib\w+-rdmav\d+\.so")
_CORE = re.compile(r"libibverbs\.so\.1")


class VerbsProvidersSource:
    """Looks in the file system of the serving process where one is named: a container brings its own libraries."""

    part = VerbsProviders

    def read(self, context: Context) -> VerbsProviders | Missing:
        tree = Tree.of(context)
        root = f"/proc/{context.pid}/root"
        prefix = root if context.pid is not None and tree.exists(f"{root}/etc") else ""
        return VerbsProviders(
            root=prefix or "/",
            drivers=_drivers(tree, f"{prefix}/etc/libibverbs.d"),
            libraries=_libraries(tree, prefix),
            libibverbs=_libibverbs(tree, prefix),
        )


def _drivers(tree: Tree, folder: str) -> tuple[str, ...] | Missing:
    if not tree.exists(folder) and tree.exists(folder.rpartition("/")[0]):
        return ()
    names = tree.names(folder)
    if isinstance(names, Missing):
        return names
    lines = (present(tree.read(f"{folder}/{name}")) or "" for name in names if name.endswith(".driver"))
    found = (line.split() for text in lines for line in text.splitlines())
    # A path may stand in place of the name: the last part then is the library's.
    return tuple(sorted({words[1].rpartition("/")[2] for words in found if len(words) == 2 and words[0] == "driver"}))


def _libraries(tree: Tree, prefix: str) -> tuple[str, ...] | Missing:
    """Return the names of provider libraries and of libibverbs, in the folders where distributions put them."""
    folders = [candidate for folder in _folders(tree, prefix) for candidate in (folder, f"{folder}/libibverbs")]
    listed = [names for folder in folders if not isinstance(names := tree.names(folder), Missing)]
    if not listed:
        return Missing(f"none of {', '.join(_LIBRARY_ROOTS)} can be listed")
    return tuple(sorted({name for names in listed for name in names if _PROVIDER.match(name) or _CORE.match(name)}))


def _libibverbs(tree: Tree, prefix: str) -> str | Missing:
    for folder in _folders(tree, prefix):
        found = tree.link(f"{folder}/libibverbs.so.1")
        if not isinstance(found, Missing):
            return found
    return Missing(f"no link libibverbs.so.1 in {', '.join(_LIBRARY_ROOTS)}")


def _folders(tree: Tree, prefix: str) -> list[str]:
    return [f for root in _LIBRARY_ROOTS for f in (f"{prefix}{root}", *_multiarch(tree, f"{prefix}{root}"))]


def _multiarch(tree: Tree, root: str) -> list[str]:
    names = tree.names(root)
    return [] if isinstance(names, Missing) else [f"{root}/{name}" for name in names if name.endswith("-linux-gnu")]


SOURCE = VerbsProvidersSource()
