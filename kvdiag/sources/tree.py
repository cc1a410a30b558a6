"""Reading small files below an injected root: bounded, absence as Missing, reasons in the host's own paths."""

import functools
import os
import stat
from dataclasses import dataclass
from pathlib import Path

from kvdiag.model.missing import Missing
from kvdiag.sources.base import Context

LIMIT_BYTES = 1 << 20
"""Longest attribute of /sys that is read; the kernel ends them at 4 KiB."""
LONG_LIMIT_BYTES = 16 << 20
"""Longest other file that is read: maps and environ of a process, tables of routes, the output of a program. Of a
longer one nothing is used: what its end held could be what matters."""

_PART_BYTES = 1 << 16
"""Read at once: /proc/sys answers 4 MiB and more with "Cannot allocate memory"."""
_TEXT = ("/proc/", "/sys/")
_ANY_BYTES = ("/cmdline", "/environ", "/maps")
"""Files of the kernel in which words, values and file names of any bytes stand."""
_OUTSIDE = "leads out of the tree"


@dataclass(frozen=True, slots=True)
class Tree:
    """A host's file system seen through `root`; every path is given as on that host ("/sys/class/net").

    A link that leads out of a copied tree is not followed: it would show this machine instead of that one.
    """

    root: Path

    @classmethod
    def of(cls, context: Context) -> "Tree":
        return cls(context.root)

    def local(self, path: str) -> Path:
        """Return where the host's `path` lies on this machine; FileNotFoundError where a link leads out of the tree."""
        root = str(self.root)
        if root == "/":
            return Path(path)
        local = f"{root}/{path.lstrip('/')}"
        inside = _root(root)
        if not (real := _real(local)).startswith(f"{inside}/") and real != inside:
            raise FileNotFoundError(2, _OUTSIDE, path)
        return Path(local)

    def read_text(self, path: str) -> str:
        """Return the file's text (undecodable bytes replaced); raises OSError, also where it is too long."""
        return self.read_bytes(path).decode(errors="replace")

    def read_bytes(self, path: str) -> bytes:
        """Return the file's content; raises OSError, also where it is too long."""
        local = self.local(path)
        limit = LIMIT_BYTES if path.startswith("/sys/") else LONG_LIMIT_BYTES
        status = local.stat()
        if not stat.S_ISREG(status.st_mode):
            raise OSError(21, "not a regular file", path)
        descriptor = os.open(local, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            parts = []
            left = limit + 1 if status.st_size <= limit else 0  # /proc and /sys tell no size before they are read
            while left > 0 and (part := os.read(descriptor, min(left, _PART_BYTES))):
                parts.append(part)
                left -= len(part)
        finally:
            os.close(descriptor)
        if left == 0:
            raise OSError(27, f"longer than {limit >> 20} MiB", path)
        return b"".join(parts)

    def read(self, path: str) -> str | Missing:
        """Return the file's text without surrounding white space, or why it cannot be read.

        What the kernel tells is text, but for a few files: bytes that are none are no value of it.
        """
        try:
            text = self.read_text(path).strip()
        except (OSError, ValueError) as error:
            return reason(path, error)
        if path.startswith(_TEXT) and not path.endswith(_ANY_BYTES) and ("\0" in text or "\ufffd" in text):
            return Missing(f"{path} is binary, not text")
        return text

    def number(self, path: str, base: int = 10) -> int | Missing:
        """Return the file's integer; `N/A` and other text are Missing with that text."""
        text = self.read(path)
        if isinstance(text, Missing):
            return text
        try:
            return int(text, base)
        except ValueError:
            return Missing(f"{path} holds {text[:40]!r}, not a number")

    def names(self, path: str) -> tuple[str, ...] | Missing:
        """Return the sorted names in a directory, or why it cannot be listed."""
        try:
            return tuple(sorted(os.listdir(self.local(path))))  # noqa: PTH208  (names are wanted, not paths)
        except (OSError, ValueError) as error:
            return reason(path, error)

    def exists(self, path: str) -> bool:
        """Return whether the path leads to something; a dangling link and an unreachable folder do not."""
        try:
            return self.local(path).exists()
        except (OSError, ValueError):
            return False

    def link(self, path: str) -> str | Missing:
        """Return the last component of what a symbolic link points to; the target itself need not exist."""
        try:
            return Path(os.readlink(self.root / path.lstrip("/"))).name  # noqa: PTH115  (the target may dangle)
        except (OSError, ValueError) as error:
            return reason(path, error)

    def resolve(self, path: str) -> str | Missing:
        """Return the host's path with all links followed, or why it leads nowhere."""
        try:
            resolved = self.local(path).resolve(strict=True)
            return "/" + str(resolved.relative_to(self.root.resolve()))
        except (OSError, RuntimeError, ValueError) as error:
            return reason(path, error)


@functools.lru_cache(maxsize=16)
def _root(root: str) -> str:
    return os.path.realpath(root)


def _real(path: str) -> str:
    """Return the path with all links followed; where it leads nowhere, as far as that goes."""
    try:
        # O_PATH opens nothing: a pipe does not wait and a device does not notice. The kernel follows the links in one
        # call, where realpath asks for each part of the path.
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except (OSError, ValueError):
        return os.path.realpath(path)
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}")  # noqa: PTH115  (a string is wanted, not a path)
    except OSError:
        return os.path.realpath(path)
    finally:
        os.close(descriptor)


def reason(path: str, error: Exception) -> Missing:
    """Return the Missing that names the host's path and the kernel's reason for not giving it."""
    if isinstance(error, FileNotFoundError):
        return Missing(f"{path} {_OUTSIDE if error.strerror == _OUTSIDE else 'does not exist'}")
    if isinstance(error, PermissionError):
        return Missing(f"no permission to read {path}")
    if isinstance(error, OSError):
        return Missing(f"{path}: {error.strerror or error}")
    return Missing(f"{path}: {error}")
