"""The payload that every transfer carries: bytes that depend on seed and position, so that any misplacement shows."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

# Odd multipliers of the finaliser of MurmurHash3 (64 bit), a bijection: no two words of a buffer are equal.
_FIRST, _SECOND = np.uint64(0xFF51AFD7ED558CCD), np.uint64(0xC4CEB9FE1A85EC53)
_SHIFT = np.uint64(33)
# Their inverses modulo 2^64; a shift by more than half the word is its own inverse.
_FIRST_INVERSE, _SECOND_INVERSE = (np.uint64(pow(int(factor), -1, 1 << 64)) for factor in (_FIRST, _SECOND))
_CHUNK_WORDS = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Mismatch:
    """The first wrong byte of a buffer (`offset`), how many wrong bytes follow it unbroken, and how many there are."""

    offset: int
    length: int
    wrong_bytes: int
    expected: int
    found: int

    def __str__(self) -> str:
        return (
            f"first wrong byte at offset {self.offset} (0x{self.found:02x} for 0x{self.expected:02x}), "
            f"a run of {self.length} wrong bytes, {self.wrong_bytes} in all"
        )


def fill(buffer: memoryview, seed: int) -> None:
    """Write the pattern of a seed (0 to 2^32-1) over the whole buffer."""
    out = np.frombuffer(buffer, dtype=np.uint8)
    for start, chunk in _chunks(len(out), seed):
        out[start : start + len(chunk)] = chunk


def digest(buffer: memoryview) -> str:
    """Return the BLAKE2b-128 digest of a buffer in hexadecimal."""
    return hashlib.blake2b(buffer, digest_size=16).hexdigest()


def wrong_at(buffer: memoryview, seed: int) -> npt.NDArray[np.intp]:
    """Return the offsets of the bytes that are not those of the pattern of a seed."""
    found = np.frombuffer(buffer, dtype=np.uint8)
    return np.concatenate(
        [
            start + np.flatnonzero(found[start : start + len(chunk)] != chunk)
            for start, chunk in _chunks(len(found), seed)
        ]
        or [np.empty(0, np.intp)]
    )


def find_mismatch(buffer: memoryview, seed: int) -> Mismatch | None:
    """Compare a buffer with the pattern of a seed; None when every byte is right."""
    wrong = wrong_at(buffer, seed)
    if not len(wrong):
        return None
    first = int(wrong[0])
    breaks = np.flatnonzero(np.diff(wrong) != 1)
    return Mismatch(
        offset=first,
        length=int(breaks[0]) + 1 if len(breaks) else len(wrong),
        wrong_bytes=len(wrong),
        expected=_byte(first, seed),
        found=int(np.frombuffer(buffer, dtype=np.uint8)[first]),
    )


def origin(words: npt.NDArray[np.uint64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the seed and the position, counted in words, that each word of a pattern belongs to."""
    word = words.astype(np.uint64)
    word ^= word >> _SHIFT
    word *= _SECOND_INVERSE
    word ^= word >> _SHIFT
    word *= _FIRST_INVERSE
    word ^= word >> _SHIFT
    low = np.uint64(0xFFFFFFFF)
    return (word >> np.uint64(32)).astype(np.int64), (word & low).astype(np.int64)


def bytes_at(offsets: npt.NDArray[np.uint64], seed: int) -> npt.NDArray[np.uint8]:
    """Return the bytes that the pattern of a seed has at some offsets."""
    eight = np.uint64(8)
    word = _mixed(offsets // eight, seed)
    return (word >> (eight * (offsets % eight))).astype(np.uint8)


def part(offset: int, size: int, seed: int) -> npt.NDArray[np.uint8]:
    """Return so many bytes of the pattern of a seed, from an offset on."""
    first, last = offset // 8, -(-(offset + size) // 8)
    starts = range(first, last, _CHUNK_WORDS)
    chunks = [_words(start, min(_CHUNK_WORDS, last - start), seed).view(np.uint8) for start in starts]
    return np.concatenate(chunks or [np.empty(0, np.uint8)])[offset - first * 8 :][:size]


def _byte(offset: int, seed: int) -> int:
    return int(bytes_at(np.array([offset], np.uint64), seed)[0])


def _chunks(size: int, seed: int) -> Iterator[tuple[int, npt.NDArray[np.uint8]]]:
    words = (size + 7) // 8
    for first in range(0, words, _CHUNK_WORDS):
        start = first * 8
        yield start, _words(first, min(_CHUNK_WORDS, words - first), seed).view(np.uint8)[: size - start]


def _words(first: int, count: int, seed: int) -> npt.NDArray[np.uint64]:
    return _mixed(np.arange(first, first + count, dtype="<u8"), seed)


def _mixed(positions: npt.NDArray[np.uint64], seed: int) -> npt.NDArray[np.uint64]:
    word = positions + (np.uint64(seed) << np.uint64(32))
    word ^= word >> _SHIFT
    word *= _FIRST
    word ^= word >> _SHIFT
    word *= _SECOND
    word ^= word >> _SHIFT
    return word
