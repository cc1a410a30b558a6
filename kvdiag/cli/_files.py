"""Files that commands write: whole or not at all."""

import os
import tempfile
from pathlib import Path

from kvdiag.errors import UsageError


def write_whole(path: Path, text: str, flag: str) -> None:
    """Write a file and put it in place at once, so that no reader sees half of it; UsageError names `flag`.

    A new file can be read by all, as the umask allows: a node exporter runs as another user.
    """
    try:
        if path.exists() and not path.is_file():  # /dev/stdout, a pipe
            path.write_text(text)
            return
        descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with os.fdopen(descriptor, "w") as file:
                file.write(text)
                file.flush()
                os.fsync(descriptor)
                os.fchmod(descriptor, 0o666 & ~_umask())
            Path(name).replace(path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise UsageError(f"{flag} {path}: {error.strerror or error}") from error


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
