"""What kind of corruption a buffer shows: each word of the pattern tells which seed and position it belongs to."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np
import numpy.typing as npt

from kvdiag_probes import pattern
from kvdiag_probes.pattern import Mismatch

Kind = Literal["bit flip", "stale", "short write", "swapped block", "misplaced block", "wrong stride", "wrong bytes"]
_WORD = 8
_EXAMINED_BYTES = 64 << 20
_MOST_FLIPS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Corruption:
    """`mismatch` is where the bytes differ; `detail` says what they are instead, with offset and length in bytes."""

    kind: Kind
    detail: str
    mismatch: Mismatch

    def __str__(self) -> str:
        return f"{self.kind} ({self.detail}): {self.mismatch}"


@dataclass(frozen=True, slots=True)
class _Run:
    """Bytes at `start` that belong `shift` bytes further on, `length` of them."""

    start: int
    length: int
    shift: int


def classify(buffer: memoryview, seed: int, block: int = 0, stale: int | None = None) -> Corruption | None:
    """Compare a buffer with the pattern of a seed and say what happened to it; None when every byte is right.

    `block` is the size of a message in bytes, `stale` the seed that the buffer carried before.
    """
    mismatch = pattern.find_mismatch(buffer, seed)
    if mismatch is None:
        return None
    kind, detail = _judge(buffer, seed, block or len(buffer), stale, mismatch)
    return Corruption(kind=kind, detail=detail, mismatch=mismatch)


def _judge(buffer: memoryview, seed: int, block: int, stale: int | None, mismatch: Mismatch) -> tuple[Kind, str]:
    flipped = mismatch.expected ^ mismatch.found
    if flipped.bit_count() == 1 and (flips := _flips(buffer, seed, mismatch)):
        others = f", and one bit each of {flips - 1} more bytes" if flips > 1 else ""
        return "bit flip", f"bit {flipped.bit_length() - 1} of the byte at offset {mismatch.offset}{others}"
    start = mismatch.offset - mismatch.offset % block
    examined = np.frombuffer(buffer, dtype=np.uint8)[start : start + _EXAMINED_BYTES]
    runs = _displaced(examined, start, seed, len(buffer))
    if runs:
        return _displacement(runs, block)
    former = _former_bytes(examined, start, mismatch, seed, stale, block)
    if former is None:
        return "wrong bytes", f"{mismatch.length} bytes at offset {mismatch.offset} are of no known origin"
    begin, end, what = former
    if begin % block and (end % block == 0 or end == len(buffer)):
        return "short write", (
            f"message {begin // block} ends after {begin % block} of {block} bytes: the last {end - begin} "
            f"bytes at offset {begin} are {what}"
        )
    return "stale", f"{end - begin} bytes at offset {begin} are {what}"


def _flips(buffer: memoryview, seed: int, mismatch: Mismatch) -> int:
    """Return how many bytes are wrong where each is so by one bit, else 0; many bytes that differ do so by more."""
    if mismatch.wrong_bytes > _MOST_FLIPS:
        return 0
    wrong = pattern.wrong_at(buffer, seed)
    flipped = np.frombuffer(buffer, np.uint8)[wrong] ^ pattern.bytes_at(wrong.astype(np.uint64), seed)
    return 0 if np.any(flipped & (flipped - 1)) else len(wrong)


def _former_bytes(
    examined: npt.NDArray[np.uint8], start: int, mismatch: Mismatch, seed: int, stale: int | None, block: int
) -> tuple[int, int, str] | None:
    """Return from where to where bytes are of a former pattern, or zero, and what they are.

    A byte may be right by chance (1 in 256), so the run is of the old bytes, not of the wrong ones; it begins with the
    message where all before it are old too, and ends with one where the bytes after that are right.
    """
    wrong = mismatch.offset - start
    for old, what in _former(examined, start, wrong, seed, stale):
        same = examined == old
        run = len(same) - wrong if same[wrong:].all() else int(np.argmin(same[wrong:]))
        if run >= min(mismatch.length, _WORD):
            begin, end = mismatch.offset, mismatch.offset + run
            last = begin + int(np.flatnonzero(examined[wrong:][:run] != pattern.part(begin, run, seed))[-1])
            return start if same[:wrong].all() else begin, min(end, (last // block + 1) * block), what
    return None


def _former(
    examined: npt.NDArray[np.uint8], start: int, wrong: int, seed: int, stale: int | None
) -> Iterator[tuple[npt.NDArray[np.uint8], str]]:
    """Yield what may have been there before: the last pass's bytes, none, those of an older pass."""
    if stale is not None:
        yield pattern.part(start, len(examined), stale), "of the pass before"
    yield np.zeros(len(examined), np.uint8), "zero, as if never written"
    first = wrong + -(start + wrong) % _WORD
    word = examined[first : first + _WORD]
    if len(word) == _WORD:
        seeds, positions = pattern.origin(word.copy().view("<u8"))
        if positions[0] * _WORD == start + first and seeds[0] != seed:
            yield pattern.part(start, len(examined), int(seeds[0])), "of an earlier pass"


def _displaced(examined: npt.NDArray[np.uint8], start: int, seed: int, size: int) -> list[_Run]:
    """Return the runs of at least two words whose origin is elsewhere in the same pattern."""
    for skew in range(_WORD):
        first = -start % _WORD + skew
        words = examined[first:][: (len(examined) - first) // _WORD * _WORD].copy().view("<u8")
        seeds, positions = pattern.origin(words)
        here = start + first + np.arange(len(words)) * _WORD
        shift = positions * _WORD - here
        moved = (seeds == seed) & (positions * _WORD < size) & (shift != 0)
        runs = []
        edges = np.flatnonzero(np.diff(np.concatenate([[0], moved.astype(np.int8), [0]])))
        for low, high in edges.reshape(-1, 2):
            cuts = np.flatnonzero(np.diff(shift[low:high])) + 1
            parts = np.split(np.arange(low, high), cuts)
            runs += [_Run(int(here[p[0]]), len(p) * _WORD, int(shift[p[0]])) for p in parts if len(p) >= 2]
        if runs:
            return runs
    return []


def _displacement(runs: list[_Run], block: int) -> tuple[Kind, str]:
    shifts = [run.shift for run in runs]
    steps = {after - before for before, after in pairwise(shifts)}
    if len(shifts) >= 2 and len(steps) == 1 and 0 not in steps and len({shift > 0 for shift in shifts}) == 1:
        return "wrong stride", (
            f"from offset {runs[0].start} on messages of {block} bytes lie {-steps.pop()} bytes further apart each"
        )
    first = runs[0]
    other = next((run for run in runs if run.start == first.start + first.shift and run.shift == -first.shift), None)
    length = min(first.length, block)
    if other is not None:
        return "swapped block", f"{length} bytes at offset {first.start} and at offset {other.start} changed places"
    return "misplaced block", f"{length} bytes at offset {first.start} belong at offset {first.start + first.shift}"
