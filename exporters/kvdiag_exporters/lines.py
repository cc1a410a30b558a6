"""A file of JSON lines that is only ever appended to, whole lines at a time."""

import os
from collections.abc import Sequence
from pathlib import Path

from kvdiag.errors import InputError


class Lines:
    """A part of a line that a crash left at the file's end is cut off (`cut`), then only whole lines are added.

    `appended` counts them. InputError where the end is no part of a JSON object: such a file is not cut.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.appended = 0
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        try:
            end = os.fstat(self._file).st_size
            self._size = _end_of_last_line(self._file)
            self.cut = self._size < end
            # After a power failure a file may end in zeros.
            if self.cut and os.pread(self._file, 1, self._size) not in (b"{", b"\0"):
                raise InputError(f"{path}: its last line is not JSON, so it is no part of a bundle; record elsewhere")
            os.ftruncate(self._file, self._size)
        except BaseException:
            os.close(self._file)
            raise

    def append(self, rows: Sequence[bytes]) -> None:
        """Write all rows; OSError where that fails, and then none of them is left in the file."""
        data = b"".join(row + b"\n" for row in rows)
        try:
            written = 0
            while written < len(data):
                written += os.write(self._file, data[written:])
        except OSError:
            os.ftruncate(self._file, self._size)
            raise
        self._size += len(data)
        self.appended += len(rows)

    def in_place(self) -> bool:
        """Return whether the path still leads to this file; also where nobody may look."""
        try:
            there = self.path.stat()
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:
            return True
        here = os.fstat(self._file)
        return (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino)

    def removed(self) -> bool:
        """Return whether no path leads to the file any more: what is in it goes with this process."""
        return os.fstat(self._file).st_nlink == 0

    def close(self) -> None:
        # No fsync: on a busy disk it takes longer than a process may take to end, and only a power failure needs it.
        file, self._file = self._file, -1
        os.close(file)


def _end_of_last_line(file: int) -> int:
    end = os.fstat(file).st_size
    while end > 0:
        start = max(0, end - 65536)
        newline = os.pread(file, end - start, start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        end = start
    return 0
