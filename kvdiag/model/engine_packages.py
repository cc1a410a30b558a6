"""The versions of an engine and of what it transfers with, as installed where its process looks."""

from dataclasses import dataclass

from kvdiag.model.missing import Missing


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """`name` normalised ("nixl-cu12"), `version` as its metadata's folder names it, `folder` where it is installed."""

    name: str
    version: str
    folder: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessPackages:
    """Of one serving process; empty where its folders hold none of the known packages."""

    pid: int
    packages: tuple[Package, ...] | Missing

    def version(self, *names: str) -> str | None:
        """Return the version of the first of these packages that is installed, or None."""
        found = () if isinstance(self.packages, Missing) else self.packages
        return next((item.version for name in names for item in found if item.name == name), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class EnginePackages:
    """One entry per serving process, in order of the pid."""

    processes: tuple[ProcessPackages, ...]

    def of(self, pid: int) -> ProcessPackages:
        """Return the entry of a process; Missing packages where there is none."""
        missing = ProcessPackages(pid=pid, packages=Missing(f"the packages of process {pid} were not read"))
        return next((item for item in self.processes if item.pid == pid), missing)
