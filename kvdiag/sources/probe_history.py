"""The file of earlier probe runs: one JSON document per line, only ever appended to."""

import errno
import fcntl
import json
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kvdiag.errors import InputError, UsageError
from kvdiag.sources.unwritable import unwritable

_MODE = 0o644
_DOCUMENT = re.compile(rb'"schema":\s*"kvdiag\.probe')


def check(path: Path) -> None:
    """Find out before the work whether `append` may be used: UsageError where it would fail, or spoil another file.

    A file without the document of any probe in its first 64 KiB is another's.
    """
    try:
        if path.exists() and not path.is_file() and not path.is_dir():
            return
        if not path.exists():
            path.parent.stat()
            return
        with path.open("ab"):
            pass
        with path.open("rb") as file:
            start = file.read(1 << 16)
    except OSError as error:
        reason = os.strerror(error.errno or errno.EIO)
        raise UsageError(f"--out {path}: {reason}; give a file that can be written") from error
    if start.strip() and not _DOCUMENT.search(start):
        raise UsageError(f"--out {path}: holds no document of a probe; give a file of its own")


def append(path: Path, document: str) -> None:
    """Append one document as one line; UsageError where the file cannot be written, UndeterminedError where the disk is
    full.

    Writers take turns (flock), the line is on disk before this returns, and a line that an earlier writer left
    unfinished is ended first, so that it spoils nothing but itself. Where it fails, no part of the line stays.
    """
    line = json.dumps(json.loads(document), separators=(",", ":")).encode() + b"\n"
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, _MODE)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            size = os.fstat(descriptor).st_size
            if size and os.pread(descriptor, 1, size - 1) != b"\n":
                line = b"\n" + line
            try:
                view = memoryview(line)
                while view:
                    view = view[os.write(descriptor, view) :]
                os.fsync(descriptor)
            except OSError:
                if stat.S_ISREG(os.fstat(descriptor).st_mode):
                    os.ftruncate(descriptor, size)
                raise
        finally:
            os.close(descriptor)
    except OSError as error:
        raise unwritable(f"--out {path}", error, "give a file that can be written") from error


def read(path: Path) -> Iterator[dict[str, Any]]:
    """Yield every whole document in the file's order; a torn line is passed over.

    UsageError where the file cannot be read, InputError where no line of it is a JSON object.
    """
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError as error:
        raise UsageError(f"--baseline {path}: {error.strerror}; give a file that --out wrote") from error
    whole = 0
    for line in lines:
        try:
            document = json.loads(line)
        except ValueError:
            continue
        if isinstance(document, dict):
            whole += 1
            yield document
    if lines and not whole:
        raise InputError(f"--baseline {path}: none of its {len(lines)} lines is a JSON object; give a file of --out")
