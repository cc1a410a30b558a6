"""An advisory lock on a folder, so that two programs never write into one trace bundle."""

import errno
import fcntl
import logging
import os
from contextlib import suppress
from pathlib import Path

from kvdiag.errors import InputError

NAME = "recorder.lock"
_UNSUPPORTED = {errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS}
_log = logging.getLogger(__name__)


class FolderLock:
    """Holds the lock until `close` or the end of the process; InputError names the process that has it already.

    On a file system without locks the folder is used without one, with a warning.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / NAME
        self._file = self._locked()
        with suppress(OSError):  # a full disk: the lock holds without its holder's number
            os.ftruncate(self._file, 0)
            os.pwrite(self._file, f"{os.getpid()}\n".encode(), 0)

    def close(self) -> None:
        """Release the lock and remove its file, where that is still this one."""
        if self._is_at_path(self._file):
            with suppress(OSError):
                self._path.unlink()
        os.close(self._file)

    def _locked(self) -> int:
        while True:
            file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = os.pread(file, 32, 0).decode("ascii", "replace").strip() or "unknown"
                os.close(file)
                raise InputError(
                    f"{self._path.parent}: another exporter (pid {holder}) records into it; "
                    "stop that one, or record into another folder"
                ) from None
            except OSError as error:
                if error.errno not in _UNSUPPORTED:
                    os.close(file)
                    raise
                _log.warning("%s: cannot be locked (%s); let one exporter write there", self._path, error.strerror)
                return file
            if self._is_at_path(file):
                return file
            os.close(file)  # its holder removed it between our opening and locking it

    def _is_at_path(self, file: int) -> bool:
        try:
            there = self._path.stat()
        except OSError:
            return False
        here = os.fstat(file)
        return (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino)
