"""Files that commands write: whole or not at all."""

import os
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from kvdiag.errors import UsageError
from kvdiag.sources.unwritable import unwritable

_OF_BUNDLES = ("requests", "counters", "events", "meta")


def write_whole(path: Path, text: str, flag: str) -> None:
    """Write a file and put it in place at once, as write_parts does."""
    write_parts(path, (text,), flag)


def write_parts(path: Path, parts: Iterable[str], flag: str) -> None:
    """Write a file and put it in place at once, so that no reader sees half of it.

    UsageError names `flag` where that cannot be, UndeterminedError where the disk is full.

    A new file can be read by all, as the umask allows: a node exporter runs as another user. What a link leads to is
    replaced, not the link; where it fails, an earlier file is as it was, and nothing new is there.
    """
    place = path.resolve()
    try:
        if path.exists() and not path.is_file():  # /dev/stdout, a pipe
            with path.open("w") as file:
                file.writelines(parts)
            return
        descriptor, name = tempfile.mkstemp(prefix=f".{place.name}.", dir=place.parent)
        try:
            with os.fdopen(descriptor, "w") as file:
                file.writelines(parts)
                file.flush()
                os.fsync(descriptor)
                os.fchmod(descriptor, 0o666 & ~_umask())
            Path(name).replace(place)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise unwritable(f"{flag} {path}", error) from error


def check_new(
    path: Path, flag: str, inputs: Sequence[Path] = (), *, marks: Sequence[bytes], otherwise: str = ""
) -> None:
    """Refuse to write over an input, or over a file whose beginning holds none of `marks`, those of its own kind.

    Nor is a file added to a bundle that would be read as its own. UsageError names `flag`, and `otherwise` what else
    may be done; an empty file may be replaced (mktemp makes them), and so may what is no regular file.
    """
    if path.is_dir():
        raise UsageError(f"{flag} {path}: a folder; name a file in it")
    if not path.parent.is_dir():
        raise UsageError(f"{flag} {path}: there is no folder {path.parent}; make it first")
    is_new = not path.exists()
    for one in inputs if path.is_file() or is_new else ():
        within = one.is_dir() and path.parent.is_dir() and one.samefile(path.parent)
        if (within and path.stem in _OF_BUNDLES) or (not is_new and one.exists() and (within or one.samefile(path))):
            raise UsageError(f"{flag} {path}: that is the input {one}, or lies in it; name another file")
    if not path.is_file():
        return
    try:
        with path.open("rb") as file:
            start = file.read(2048)
    except OSError as error:
        raise UsageError(f"{flag} {path}: {error.strerror}; name another file") from error
    if start and not any(mark in start for mark in marks):
        raise UsageError(f"{flag} {path}: exists, and is not what kvdiag writes there; name another file{otherwise}")


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
