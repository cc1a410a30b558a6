"""Message sizes as users write them: 4096, 64KiB, 1M; decimal units (KB, MB) are refused as ambiguous."""

import re

from kvdiag.errors import UsageError

MAX_MESSAGE_BYTES = 1 << 30
_FORM = re.compile(r"(\d+)\s*([KMG]?)(?:i?B?)", re.IGNORECASE)
_DECIMAL = re.compile(r"\d+\s*[KMG]B", re.IGNORECASE)
_SHIFT = {"": 0, "K": 10, "M": 20, "G": 30}


def parse_sizes(text: str, flag: str = "--size") -> tuple[int, ...]:
    """Return the bytes of a comma-separated list such as `64KiB,1MiB`, in the order given; UsageError names `flag`."""
    sizes = tuple(parse_size(part, flag) for part in text.split(","))
    if len(set(sizes)) != len(sizes):
        raise UsageError(f"{flag}: {text!r} names a size twice; give each size once")
    return sizes


def parse_size(text: str, flag: str = "--size", *, most: int = MAX_MESSAGE_BYTES) -> int:
    """Return bytes (1 to `most`) of one size, binary units only; UsageError names `flag`."""
    word = text.strip()
    if not word:
        raise UsageError(f"{flag}: an empty size; write for example 64KiB,1MiB")
    if _DECIMAL.fullmatch(word):
        raise UsageError(f"{flag}: {word!r} may mean 1000 or 1024; write {word[:-1]}iB")
    match = _FORM.fullmatch(word)
    if not match:
        raise UsageError(f"{flag}: {word!r} is not a size; write bytes or KiB, MiB, GiB, for example 64KiB")
    size = int(match[1]) << _SHIFT[match[2].upper()]
    if not 1 <= size <= most:
        raise UsageError(f"{flag}: {word!r} is outside 1 byte to {format_size(most)}")
    return size


def format_size(size: int) -> str:
    """Return bytes in the largest binary unit that divides them, e.g. `64KiB`, `1000B`."""
    for unit, shift in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if size and size % (1 << shift) == 0:
            return f"{size >> shift}{unit}"
    return f"{size}B"
