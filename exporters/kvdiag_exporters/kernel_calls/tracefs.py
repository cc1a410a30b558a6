"""The tracing file system: where it is, whether it can be used and why not, and the few things done to its files."""

import errno
import fcntl
import os
from pathlib import Path
from typing import Protocol

from kvdiag.errors import UndeterminedError
from kvdiag.model.missing import Missing
from kvdiag.sources.tree import Tree

PLACES = ("/sys/kernel/tracing", "/sys/kernel/debug/tracing")
_NEEDED = {
    "kprobe_events": "CONFIG_KPROBE_EVENTS",
    "synthetic_events": "CONFIG_SYNTH_EVENTS",
    "instances": "CONFIG_TRACING",
}
_LOCKDOWN = "/sys/kernel/security/lockdown"


class TraceFiles(Protocol):
    """Files below the tracing file system, by their paths in it; all but `release` raise OSError."""

    def text(self, path: str) -> str: ...

    def append(self, path: str, line: str) -> None: ...

    def make_folder(self, path: str) -> None: ...

    def remove_folder(self, path: str) -> None: ...

    def names(self, path: str) -> list[str]: ...

    def lock(self, path: str) -> int: ...

    def release(self, held: int) -> None: ...


class Tracefs:
    """The kernel's own, mounted at `root`."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def text(self, path: str) -> str:
        return (self._root / path).read_text(errors="replace")

    def append(self, path: str, line: str) -> None:
        """Write one line, never truncating: opened for that, kprobe_events forgets the probes of everybody."""
        descriptor = os.open(self._root / path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        try:
            os.write(descriptor, f"{line}\n".encode())
        finally:
            os.close(descriptor)

    def make_folder(self, path: str) -> None:
        (self._root / path).mkdir()

    def remove_folder(self, path: str) -> None:
        (self._root / path).rmdir()

    def names(self, path: str) -> list[str]:
        return sorted(os.listdir(self._root / path))  # noqa: PTH208  (names are wanted, not paths)

    def lock(self, path: str) -> int:
        """Open a file and lock it as long as this process lives; BlockingIOError where another one has."""
        descriptor = os.open(self._root / path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def release(self, held: int) -> None:
        os.close(held)


def find(tree: Tree) -> Tracefs:
    """Return the tracing file system of a host; UndeterminedError with the reason where it cannot be used."""
    reasons = []
    for place in PLACES:
        names = tree.names(place)
        if isinstance(names, Missing):
            reasons.append(names.missing)
        elif not names:
            reasons.append(f"nothing is mounted at {place}; mount -t tracefs tracefs {place}")
        else:
            for name, option in _NEEDED.items():
                if name not in names:
                    raise UndeterminedError(f"{place} has no {name}: a kernel without {option}")
            return Tracefs(tree.local(place))
    denied = [one for one in reasons if one.startswith("no permission")]
    raise UndeterminedError(f"{(denied or reasons)[0]}{'; only root may trace the kernel' if denied else ''}")


def refusal(tree: Tree, path: str, error: OSError) -> str:
    """Return in one line why the kernel refused a file of its tracing file system."""
    if error.errno in (errno.EPERM, errno.EACCES):
        lockdown = tree.read(_LOCKDOWN)
        if not isinstance(lockdown, Missing) and "[confidentiality]" in lockdown:
            return f"{path}: the kernel is locked down ({lockdown}), which forbids tracing"
        return f"{path}: {error.strerror}; only root may trace the kernel"
    if error.errno == errno.EROFS:
        return f"{path}: mounted read-only here; tracing needs it writable"
    return f"{path}: {error.strerror or error}"
