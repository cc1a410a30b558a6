from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvdiag.derive import kv_blocks
from kvdiag.errors import UsageError
from kvdiag.model.kv_geometry import KvGeometry

LLAMA_8B = KvGeometry(layers=32, kv_heads=8, head_size=128, dtype_bytes=2, block_tokens=16)
LLAMA_70B = replace(LLAMA_8B, layers=80)
QWEN_7B = KvGeometry(layers=28, kv_heads=4, head_size=128, dtype_bytes=2, block_tokens=16)
DEEPSEEK_V3 = KvGeometry(layers=61, kv_heads=128, head_size=576, dtype_bytes=2, block_tokens=64, mla=True)
TINY = KvGeometry(layers=4, kv_heads=8, head_size=128, dtype_bytes=2, block_tokens=128)


def moved(geometry: KvGeometry, source: int, target: int, tokens: int) -> dict[tuple[int, int], tuple[int, int]]:
    """Return (descriptors, bytes) of every pair of ranks."""
    count = kv_blocks.blocks_of(geometry, tokens)
    table = range(count)
    found = {}
    for pair in kv_blocks.exchanges(geometry, source, target):
        blocks = kv_blocks.descriptors(geometry, source, target, pair, table, table, count)
        found[pair] = len(blocks), sum(block.length for block in blocks)
    return found


@pytest.mark.parametrize(
    ("geometry", "size"),
    # Llama 3.1 8B and 70B, Qwen2.5 7B (their config.json: layers, num_key_value_heads, head_dim, bf16);
    # DeepSeek-V3: kv_lora_rank 512 + qk_rope_head_dim 64; the lab's tiny Llama.
    [(LLAMA_8B, 131_072), (LLAMA_70B, 327_680), (QWEN_7B, 57_344), (DEEPSEEK_V3, 70_272), (TINY, 16_384)],
)
def test_bytes_per_token_are_the_models(geometry: KvGeometry, size: int) -> None:
    assert kv_blocks.bytes_per_token(geometry) == size


def test_equal_parallelism_moves_whole_blocks() -> None:
    # 4096 tokens of Llama 70B over TP 8: one head a rank, 80 layers × (K, V) × 256 blocks of 16 × 128 × 2 bytes.
    pairs = moved(LLAMA_70B, 8, 8, 4096)
    assert pairs == {(rank, rank): (80 * 2 * 256, 80 * 2 * 256 * 4096) for rank in range(8)}
    assert sum(size for _, size in pairs.values()) == 4096 * 327_680
    assert moved(TINY, 1, 1, 129)[0, 0] == (4 * 2 * 2, 2 * (2 << 20))


def test_wider_prefill_gathers_and_wider_decode_slices_heads() -> None:
    gathered = moved(LLAMA_8B, 4, 1, 160)
    assert gathered == {(rank, 0): (640, 160 * 131_072 // 4) for rank in range(4)}
    sliced = moved(LLAMA_8B, 1, 4, 160)
    assert sliced == {(0, rank): (640, 160 * 131_072 // 4) for rank in range(4)}
    by_token = moved(replace(LLAMA_8B, layout="nhd"), 1, 4, 160)
    assert by_token == {(0, rank): (640 * 16, 160 * 131_072 // 4) for rank in range(4)}


def test_mla_moves_the_whole_latent_to_every_rank_from_different_holders() -> None:
    pairs = moved(DEEPSEEK_V3, 4, 8, 640)
    assert list(pairs) == [(rank % 4, rank) for rank in range(8)]
    assert set(pairs.values()) == {(61 * 10, 640 * 70_272)}


def test_replicated_heads_are_fetched_once() -> None:
    # 4 KV heads on 8 prefill ranks: two replicas each; every decode rank of 4 needs one of them.
    pairs = moved(QWEN_7B, 8, 4, 160)
    assert sorted(target for _, target in pairs) == [0, 1, 2, 3]
    assert sum(size for _, size in pairs.values()) == 160 * 57_344


def test_heads_that_do_not_divide_are_refused() -> None:
    with pytest.raises(UsageError, match="4 KV heads are not divisible among 3 ranks"):
        kv_blocks.exchanges(QWEN_7B, 3, 1)


@given(
    source=st.sampled_from([1, 2, 4, 8, 16]),
    target=st.sampled_from([1, 2, 4, 8, 16]),
    layout=st.sampled_from(["hnd", "nhd"]),
    order=st.permutations(range(5)),
)
def test_every_byte_of_every_target_is_written_once(source: int, target: int, layout: str, order: list[int]) -> None:
    geometry = KvGeometry(layers=2, kv_heads=8, head_size=4, dtype_bytes=2, block_tokens=3, layout=layout)  # type: ignore[arg-type]
    written: dict[int, bytearray] = {}
    for pair in kv_blocks.exchanges(geometry, source, target):
        image = written.setdefault(pair[1], bytearray(kv_blocks.rank_bytes(geometry, target, 5)))
        for block in kv_blocks.descriptors(geometry, source, target, pair, range(5), order, 5):
            assert block.source + block.length <= kv_blocks.rank_bytes(geometry, source, 5)
            for offset in range(block.target, block.target + block.length):
                image[offset] += 1
    assert len(written) == target
    assert all(set(image) == {1} for image in written.values())


def test_neighbours_at_both_ends_are_joined() -> None:
    whole = kv_blocks.descriptors(TINY, 1, 1, (0, 0), range(4), range(4), 4)
    # Blocks of a tensor follow each other, and so do the tensors of a pool that holds nothing else.
    assert len(kv_blocks.coalesce(whole)) == 1
    roomy = kv_blocks.descriptors(TINY, 1, 1, (0, 0), range(4), range(4), 6)
    assert [block.length for block in kv_blocks.coalesce(roomy)] == [4 * 128 * 8 * 128 * 2] * 8
    scattered = kv_blocks.descriptors(TINY, 1, 1, (0, 0), [3, 1, 2, 0], range(4), 4)
    assert len(kv_blocks.coalesce(scattered)) == len(scattered) - 8  # 1, 2 are neighbours at both ends
