"""What a source is, what is injected into it, and how all of them are read into one snapshot."""

import importlib
import pkgutil
import re
import socket
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, runtime_checkable

import kvdiag.sources
from kvdiag.model.missing import Missing
from kvdiag.model.snapshot import Snapshot

_LONGEST_NAME = 64  # HOST_NAME_MAX


class Clock(Protocol):
    """Time as sources see it, so that tests can hold it still."""

    def wall_s(self) -> float:
        """Seconds since the epoch."""
        ...

    def monotonic_s(self) -> float:
        """Seconds on a clock that never steps."""
        ...


class SystemClock:
    def wall_s(self) -> float:
        return time.time()

    def monotonic_s(self) -> float:
        return time.monotonic()


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """Where a source reads from: roots, clock, the serving process of interest, further endpoints by name, and engine
    logs (on this machine, whatever the root).

    `live` is False for a fixture or a copied tree: then sources that ask the kernel or start a program read
    `<root>/commands/<name>` instead, or are Missing.
    """

    root: Path = Path("/")
    live: bool = True
    clock: Clock = field(default_factory=SystemClock)
    pid: int | None = None
    environ: Mapping[str, str] | None = None
    endpoints: Mapping[str, str] = field(default_factory=dict)
    logs: tuple[Path, ...] = ()

    @property
    def sysfs(self) -> Path:
        return self.root / "sys"

    @property
    def procfs(self) -> Path:
        return self.root / "proc"

    @property
    def dev(self) -> Path:
        return self.root / "dev"

    @property
    def etc(self) -> Path:
        return self.root / "etc"

    def host(self) -> str:
        """Return the host name: the tree's own for a copied tree, this machine's when live."""
        if self.live:
            return socket.gethostname()
        from kvdiag.sources.tree import Tree  # which itself needs Context

        name = Tree.of(self).read("/proc/sys/kernel/hostname")
        named = not isinstance(name, Missing) and re.fullmatch(r"[\w.-]+", name[:_LONGEST_NAME], re.ASCII)
        return named[0] if named else self.root.name


@runtime_checkable
class Source(Protocol):
    """One origin of facts. `read` returns an instance of `part`, or Missing with the reason; it never raises for
    something that is merely absent.
    """

    @property
    def part(self) -> type[object]: ...

    def read(self, context: Context) -> object: ...


def discover() -> tuple[Source, ...]:
    """Return the SOURCE object of every module in this folder that has one, in the order of the module names.

    A module whose name starts with an underscore is part of another one and is not imported here, nor is one without
    a SOURCE: some read what only other commands need, with packages that need not be installed.
    """
    found = []
    for module_info in sorted(pkgutil.iter_modules(kvdiag.sources.__path__), key=lambda info: info.name):
        file = Path(kvdiag.sources.__path__[0], f"{module_info.name}.py")
        if module_info.name.startswith("_") or b"\nSOURCE = " not in file.read_bytes():
            continue
        module = importlib.import_module(f"kvdiag.sources.{module_info.name}")
        source = getattr(module, "SOURCE", None)
        if source is not None:
            found.append(source)
    return tuple(found)


def collect(context: Context, sources: Iterable[Source] | None = None) -> Snapshot:
    """Read every source (default: all that `discover` finds) once into a Snapshot; a failing one becomes Missing."""
    parts: dict[type[object], object] = {}
    for source in discover() if sources is None else sources:
        parts[source.part] = _read(source, context)
    return Snapshot(host=context.host(), time_s=context.clock.wall_s(), parts=parts)


def _read(source: Source, context: Context) -> object:
    try:
        return source.read(context)
    except PermissionError as error:
        return Missing(f"no permission to read {error.filename}")
    except OSError as error:
        return Missing(f"{error.filename or type(source).__name__}: {error.strerror or error}")
    except (ValueError, LookupError, RecursionError) as error:  # text that no kernel or program was seen to write
        return Missing(f"{type(source).__name__} cannot read this host: {type(error).__name__}: {error}")
