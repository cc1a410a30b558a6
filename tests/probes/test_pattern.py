import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvdiag_probes import pattern

SIZE = (1 << 19) + 13  # more than one chunk, and no multiple of a word


def filled(size: int, seed: int) -> bytearray:
    buffer = bytearray(size)
    pattern.fill(memoryview(buffer), seed)
    return buffer


def test_a_filled_buffer_matches_its_seed_and_no_other() -> None:
    buffer = filled(SIZE, 7)
    assert pattern.find_mismatch(memoryview(buffer), 7) is None
    other = pattern.find_mismatch(memoryview(buffer), 8)
    assert other is not None
    assert other.wrong_bytes > SIZE * 0.99


@given(offset=st.integers(0, SIZE - 1), length=st.integers(1, 5000))
def test_the_first_wrong_byte_and_its_run_are_named(offset: int, length: int) -> None:
    buffer = filled(SIZE, 3)
    end = min(offset + length, SIZE)
    for i in range(offset, end):
        buffer[i] ^= 0x55
    found = pattern.find_mismatch(memoryview(buffer), 3)
    assert found is not None
    assert (found.offset, found.length, found.wrong_bytes) == (offset, end - offset, end - offset)
    assert found.found == found.expected ^ 0x55


def test_separate_wrong_bytes_are_counted_but_the_run_ends_at_the_first_gap() -> None:
    buffer = filled(64, 3)
    for i in (9, 10, 20):
        buffer[i] ^= 1
    found = pattern.find_mismatch(memoryview(buffer), 3)
    assert found is not None
    assert (found.offset, found.length, found.wrong_bytes) == (9, 2, 3)


@pytest.mark.parametrize("shift", [1, 8, 4096, 65536])
def test_a_block_at_the_wrong_place_is_found(shift: int) -> None:
    buffer = filled(SIZE, 5)
    buffer[shift : shift + 4096] = buffer[:4096]
    assert pattern.find_mismatch(memoryview(buffer), 5) is not None


def test_the_pattern_is_a_prefix_of_a_longer_one() -> None:
    assert filled(100, 9) == filled(1000, 9)[:100]


def test_the_digest_depends_on_every_byte() -> None:
    buffer = filled(1000, 1)
    before = pattern.digest(memoryview(buffer))
    assert before == pattern.digest(memoryview(filled(1000, 1)))
    buffer[999] ^= 1
    assert pattern.digest(memoryview(buffer)) != before
