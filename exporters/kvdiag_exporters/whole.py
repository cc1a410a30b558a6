"""Files that are replaced at once, or stay as they are."""

from contextlib import suppress
from pathlib import Path


def put(path: Path, content: bytes) -> None:
    """Give the file this content at once; OSError where that fails, and then nothing is left beside it."""
    beside = path.with_name(path.name + ".new")
    try:
        beside.write_bytes(content)
        beside.replace(path)
    except BaseException:
        with suppress(OSError):
            beside.unlink()
        raise
