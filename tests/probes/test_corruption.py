import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvdiag_probes import pattern
from kvdiag_probes.corruption import Corruption, classify

BLOCK, COUNT, SEED, STALE = 4096, 16, 7, 6
SIZE = BLOCK * COUNT


def filled(seed: int = SEED, size: int = SIZE) -> bytearray:
    buffer = bytearray(size)
    pattern.fill(memoryview(buffer), seed)
    return buffer


def judged(buffer: bytearray, stale: int | None = STALE, block: int = BLOCK) -> Corruption:
    found = classify(memoryview(buffer), SEED, block, stale)
    assert found is not None
    return found


def test_a_right_buffer_has_no_corruption() -> None:
    assert classify(memoryview(filled()), SEED, BLOCK, STALE) is None


@given(offset=st.integers(0, SIZE - 1), bit=st.integers(0, 7))
def test_a_flipped_bit_is_named(offset: int, bit: int) -> None:
    buffer = filled()
    buffer[offset] ^= 1 << bit
    found = judged(buffer)
    assert found.kind == "bit flip"
    assert found.detail == f"bit {bit} of the byte at offset {offset}"
    assert found.mismatch.length == 1


@given(block=st.integers(0, COUNT - 1))
def test_a_message_that_never_arrived_is_stale(block: int) -> None:
    buffer, old = filled(), filled(STALE)
    buffer[block * BLOCK : (block + 1) * BLOCK] = old[block * BLOCK : (block + 1) * BLOCK]
    found = judged(buffer)
    assert (found.kind, found.detail) == ("stale", f"{BLOCK} bytes at offset {block * BLOCK} are of the pass before")


def test_memory_that_was_never_written_is_stale_too() -> None:
    buffer = filled()
    buffer[:BLOCK] = bytes(BLOCK)
    assert judged(buffer, stale=None).kind == "stale"
    # A pass may be longer than the one before it: what lay beyond that was never written either.
    assert judged(buffer).detail.endswith(" are zero, as if never written")


@given(block=st.integers(0, COUNT - 1), passes=st.integers(2, 4000))
@settings(max_examples=300)
def test_a_message_of_any_former_pass_is_stale(block: int, passes: int) -> None:
    """Passes differ in length, so that what a place held before may be older than the last pass."""
    buffer, old = filled(), filled(SEED + passes)
    buffer[block * BLOCK : (block + 1) * BLOCK] = old[block * BLOCK : (block + 1) * BLOCK]
    found = judged(buffer)
    assert (found.kind, found.detail) == ("stale", f"{BLOCK} bytes at offset {block * BLOCK} are of an earlier pass")


@given(flips=st.dictionaries(st.integers(0, COUNT * BLOCK - 1), st.integers(0, 7), min_size=2, max_size=20))
def test_bits_flipped_in_several_bytes_are_still_flips(flips: dict[int, int]) -> None:
    buffer = filled()
    for offset, bit in flips.items():
        buffer[offset] ^= 1 << bit
    first = min(flips)
    others = f", and one bit each of {len(flips) - 1} more bytes"
    found = judged(buffer)
    assert (found.kind, found.detail) == ("bit flip", f"bit {flips[first]} of the byte at offset {first}{others}")


@given(block=st.integers(0, COUNT - 1), kept=st.integers(1, BLOCK - 16))
def test_a_short_write_is_told_from_a_missing_one(block: int, kept: int) -> None:
    buffer, old = filled(), filled(STALE)
    start, end = block * BLOCK + kept, (block + 1) * BLOCK
    buffer[start:end] = old[start:end]
    found = judged(buffer)
    assert found.kind == "short write"
    assert f"message {block} ends after " in found.detail
    assert found.mismatch.offset - start in range(8)  # bytes may be equal by chance


@pytest.mark.parametrize(("low", "high"), [(0, 1), (3, 11), (14, 15)])
def test_two_messages_that_changed_places_are_swapped(low: int, high: int) -> None:
    buffer = filled()
    a, b = slice(low * BLOCK, (low + 1) * BLOCK), slice(high * BLOCK, (high + 1) * BLOCK)
    buffer[a], buffer[b] = buffer[b], buffer[a]
    found = judged(buffer)
    assert found.kind == "swapped block"
    assert found.detail == f"{BLOCK} bytes at offset {low * BLOCK} and at offset {high * BLOCK} changed places"


@pytest.mark.parametrize("shift", [8, 13, BLOCK, 5 * BLOCK])
def test_a_message_in_anothers_place_is_misplaced(shift: int) -> None:
    buffer, right = filled(), filled()
    buffer[2 * BLOCK : 3 * BLOCK] = right[2 * BLOCK + shift : 3 * BLOCK + shift]
    found = judged(buffer)
    assert found.kind == "misplaced block"
    assert found.mismatch.offset - 2 * BLOCK in range(8)
    assert "belong at offset" in found.detail


@pytest.mark.parametrize("stride", [BLOCK + 256, BLOCK + 8, BLOCK - 512])
def test_a_wrong_stride_is_told_from_a_misplaced_message(stride: int) -> None:
    right = filled()
    buffer = filled(STALE)
    for i in range(COUNT):
        piece = right[i * BLOCK : (i + 1) * BLOCK]
        room = max(0, min(BLOCK, SIZE - i * stride))
        buffer[i * stride : i * stride + room] = piece[:room]
    found = judged(buffer)
    assert found.kind == "wrong stride"
    assert f"{stride - BLOCK} bytes further apart" in found.detail


def test_foreign_bytes_are_wrong_bytes() -> None:
    buffer = filled()
    buffer[100:164] = bytes(range(64))
    found = judged(buffer)
    assert found.kind == "wrong bytes"
    assert "\n" not in str(found) and "offset 100" in str(found)


@given(data=st.binary(min_size=1, max_size=200), offset=st.integers(0, 3000))
def test_whatever_the_damage_there_is_one_bounded_line(data: bytes, offset: int) -> None:
    buffer = filled(size=3333)
    buffer[offset : offset + len(data)] = data
    found = classify(memoryview(buffer)[:3333], SEED, 1000, STALE)
    if found is not None:
        assert len(str(found)) < 512 and "\n" not in str(found)
