"""Finds the distribution's pyverbs: it must match the system's libibverbs, which a wheel cannot promise."""

import importlib
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

from kvdiag.errors import UndeterminedError

_VERSION = f"python{sys.version_info.major}.{sys.version_info.minor}"
DISTRIBUTION_FOLDERS = (
    Path("/usr/lib/python3/dist-packages"),
    Path(f"/usr/lib64/{_VERSION}/site-packages"),
    Path(f"/usr/lib/{_VERSION}/site-packages"),
)
_REMEDY = (
    "install it with `apt install python3-pyverbs` (or NVIDIA's OFED/DOCA packages), or measure over TCP "
    "(--transport tcp of bandwidth, latency, cold and kv)"
)


class DistributionFinder:
    """Finds the one package pyverbs in one folder, and nothing else there."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,  # noqa: ARG002
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        if fullname != "pyverbs":
            return None
        return importlib.machinery.PathFinder.find_spec(fullname, [str(self._folder)])


def make_importable(folders: Sequence[Path] = DISTRIBUTION_FOLDERS) -> None:
    """Make `import pyverbs` work; UndeterminedError saying what to install where no build fits this Python."""
    if importlib.util.find_spec("pyverbs") is not None:
        return
    other_builds = []
    for folder in folders:
        package = folder / "pyverbs"
        if any((package / f"device{suffix}").exists() for suffix in importlib.machinery.EXTENSION_SUFFIXES):
            sys.meta_path.append(DistributionFinder(folder))
            return
        other_builds += sorted(package.glob("device.*.so"))
    if other_builds:
        built_for = other_builds[0].name.split(".")[1]
        raise UndeterminedError(
            f"RDMA probes need pyverbs: {other_builds[0].parent} is built for {built_for}, this is {_VERSION}; "
            "run kvdiag with the distribution's own Python, or measure over TCP"
        )
    raise UndeterminedError(f"RDMA probes need pyverbs, which is not installed: {_REMEDY}")
