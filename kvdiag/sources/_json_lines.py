"""JSON lines of which the last one may have been cut off while it was written, and whole documents."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from kvdiag.errors import InputError

T = TypeVar("T")
EARLIEST_S, LATEST_S = 631_152_000.0, 4_102_444_800.0
"""1990 to 2100: what lies outside is no time of the epoch in that unit."""
_UNITS = {1.0: "seconds", 1e9: "nanoseconds"}


def decoded_lines(path: Path, notes: list[str], decode: Callable[[bytes], T]) -> Iterator[tuple[int, T]]:
    """Yield number and content of each line that is not empty.

    A last line without its end that cannot be decoded is left out, and noted; InputError names any other one.
    """
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                found = decode(line)
            except (msgspec.MsgspecError, RecursionError, InputError) as error:
                if number > 1 and not line.endswith(b"\n"):
                    notes.append(f"{path.name} line {number}: cut off while it was written; left out")
                    return
                raise InputError(f"{path} line {number}: {error}") from None
            yield number, found


def document(text: bytes) -> Any:
    """Return JSON as Python writes it: NaN and Infinity are among its numbers; ValueError where it is none."""
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return json.loads(text)


def seconds_of(name: str, value: float, per_second: float) -> float:
    """Return a time of the epoch in seconds; InputError where it lies before 1990 or after 2100: another unit."""
    found = value / per_second
    if not EARLIEST_S < found < LATEST_S:
        raise InputError(
            f"{name} is {value:.17g}, which is no time of our days in {_UNITS[per_second]}; is it in another unit?"
        )
    return found
