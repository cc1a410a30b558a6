"""A growing text file, followed as another program appends to it: each whole line once, without waiting or locking."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from kvdiag.model.missing import Missing

T = TypeVar("T")

READ_BYTES = 8 << 20
"""Most that one `read` takes in, so that a large backlog never delays a scrape for long."""

LINE_BYTES = 1 << 20
"""A longer line is no record; what follows its end is read again."""

_TOO_LONG = f"longer than {LINE_BYTES} bytes"


class LineFollower(Generic[T]):
    """Gives what `decode` makes of each line, through truncation and rotation; None of it: the line is of no concern.

    `decode` raises ValueError or msgspec's errors for a line that should be understood and is not. `from_end` skips
    what the file holds when it is first opened. Counts: `records` read, `invalid` lines, `restarts` of the file.
    `first_error` and `last_error` name the file, the line and what is wrong with the first and the latest invalid one.
    """

    def __init__(self, path: Path, decode: Callable[[bytes], T | None], *, from_end: bool = False) -> None:
        self.path = path
        self.records = 0
        self.invalid = 0
        self.restarts = 0
        self.first_error = ""
        self.last_error = ""
        self._decode = decode
        self._from_end = from_end
        self._file: int | None = None
        self._identity = (0, 0)
        self._offset = 0
        self._line = 0
        self._rest = b""
        self._skipping = False
        self._unread = False

    def read(self, limit_bytes: int = READ_BYTES) -> tuple[T, ...] | Missing:
        """Return what was appended since the last call, at most `limit_bytes` of it, or why there is no file, or none
        that can be read: a folder, a pipe, a disk that fails.
        """
        try:
            found = self._read(limit_bytes)
        except OSError as error:
            found = Missing(f"{self.path}: {error.strerror}")
            if self._replaced():
                self.close()
        self._unread = isinstance(found, Missing)
        return found

    def _read(self, limit_bytes: int) -> tuple[T, ...] | Missing:
        if self._file is None:
            missing = self._open()
            if missing is not None:
                return missing
        assert self._file is not None
        if os.fstat(self._file).st_size < self._offset:
            self._restart()
        data = os.pread(self._file, limit_bytes, self._offset)
        self._offset += len(data)
        records = self._parse(data)
        if len(data) < limit_bytes and self._replaced():
            # All of the old file has been read: the next call begins with the new one.
            self.close()
            self.restarts += 1
        return records

    def backlog_bytes(self) -> int:
        """Return how much of the file has not been read yet; nothing of one that cannot be read waits."""
        return 0 if self._file is None or self._unread else max(0, os.fstat(self._file).st_size - self._offset)

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _open(self) -> Missing | None:
        try:
            self._file = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            self._from_end = False  # a file that comes later is new as a whole
            return Missing(f"{self.path}: {error.strerror}")
        status = os.fstat(self._file)
        self._identity = (status.st_dev, status.st_ino)
        self._offset, self._line, self._rest, self._skipping = 0, 0, b"", False
        if self._from_end:
            self._from_end = False
            self._offset = status.st_size
            # What is there may end within a line, of which only the rest would be read.
            self._skipping = status.st_size > 0 and os.pread(self._file, 1, status.st_size - 1) != b"\n"
        return None

    def _restart(self) -> None:
        self.restarts += 1
        self._offset, self._line, self._rest, self._skipping = 0, 0, b"", False

    def _replaced(self) -> bool:
        try:
            status = self.path.stat()
        except OSError:
            return False
        return (status.st_dev, status.st_ino) != self._identity

    def _parse(self, data: bytes) -> tuple[T, ...]:
        lines = data.split(b"\n")
        lines[0] = self._rest + lines[0]
        self._rest = lines.pop()
        found = []
        for line in lines:
            self._line += 1
            if self._skipping:
                self._skipping = False
            elif len(line) > LINE_BYTES:
                self._count_invalid(_TOO_LONG)
            elif line.strip():
                try:
                    record = self._decode(line)
                except (msgspec.MsgspecError, ValueError, RecursionError) as error:
                    self._count_invalid(str(error))
                else:
                    if record is not None:
                        found.append(record)
        if len(self._rest) > LINE_BYTES:
            if not self._skipping:
                self._count_invalid(_TOO_LONG)
            self._rest, self._skipping = b"", True
        self.records += len(found)
        return tuple(found)

    def _count_invalid(self, why: str) -> None:
        self.invalid += 1
        self.last_error = f"{self.path}, line {self._line}: {why}"
        self.first_error = self.first_error or self.last_error
