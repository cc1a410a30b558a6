"""What it is that an output cannot be written: a wrong place, or a disk that is full."""

import errno

from kvdiag.errors import UndeterminedError, UsageError

_FULL = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO))


def unwritable(where: str, error: OSError, otherwise: str = "") -> UsageError | UndeterminedError:
    """Return the error of an output that cannot be written; `where` names flag or field, and file.

    A place that cannot be written to is a wrong one (64). One that is full or fails is not the caller's mistake, and
    what was found could not be kept: undetermined (3), as where the exporter's recorder loses lines.
    """
    if is_full(error):
        return UndeterminedError(f"{where}: {error.strerror}; make room, or write elsewhere")
    return UsageError(f"{where}: {error.strerror or error}{'; ' if otherwise else ''}{otherwise}")


def is_full(error: OSError) -> bool:
    """Return whether a disk is full or fails, which a write somewhere else would not meet."""
    return error.errno in _FULL
