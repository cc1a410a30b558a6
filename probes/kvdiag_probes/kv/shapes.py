"""The transfers that the probe compares: one request's blocks in several layouts, equal in bytes."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from kvdiag.derive import kv_blocks
from kvdiag.errors import UsageError
from kvdiag.model.kv_geometry import Block, KvGeometry
from kvdiag.model.probe_kv import KvMode, KvRequest

MODES: tuple[KvMode, ...] = ("block", "layer", "coalesced", "contiguous")
_MOST_CONTIGUOUS = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """`groups` are posted one after another; `source_bytes` and `target_bytes` are what the caches hold."""

    mode: KvMode
    tokens: int
    groups: tuple[tuple[Block, ...], ...]
    source_bytes: int
    target_bytes: int

    @property
    def descriptors(self) -> int:
        return sum(len(group) for group in self.groups)

    @property
    def bytes(self) -> int:
        return sum(block.length for group in self.groups for block in group)


def shape(
    geometry: KvGeometry, source_tp: int, target_tp: int, pair: tuple[int, int], tokens: int, mode: KvMode
) -> Shape:
    """Return one layout of one request, in a cache with one block to spare, so that tensors are never adjacent.

    UsageError where the request is larger than the 1 GiB that one contiguous message may have.
    """
    count = kv_blocks.blocks_of(geometry, tokens)
    pool = count + 1
    here: Sequence[int] = range(count)
    there: Sequence[int] = range(count)
    if mode in ("block", "layer"):
        here, there = (random.Random(seed).sample(range(pool), count) for seed in (1, 2))  # noqa: S311 - a layout
    blocks = kv_blocks.descriptors(geometry, source_tp, target_tp, pair, here, there, pool)
    total = sum(block.length for block in blocks)
    if total > _MOST_CONTIGUOUS:
        raise UsageError(f"--tokens: {tokens} are {total} bytes for one pair of ranks; at most 1 GiB: give fewer")
    if mode == "coalesced":
        blocks = kv_blocks.coalesce(blocks)
    if mode == "contiguous":
        blocks = (Block(0, 0, total, 0),)
    groups = (blocks,)
    if mode == "layer":
        groups = tuple(tuple(group) for _, group in groupby(blocks, key=lambda block: block.layer))  # type: ignore[assignment]
    return Shape(
        mode=mode,
        tokens=tokens,
        groups=groups,
        source_bytes=kv_blocks.rank_bytes(geometry, source_tp, pool),
        target_bytes=kv_blocks.rank_bytes(geometry, target_tp, pool),
    )


def request(geometry: KvGeometry, source_tp: int, target_tp: int, tokens: int) -> KvRequest:
    """Return what all ranks together exchange for one request of so many tokens."""
    table = range(kv_blocks.blocks_of(geometry, tokens))
    pairs = kv_blocks.exchanges(geometry, source_tp, target_tp)
    moved = [
        kv_blocks.descriptors(geometry, source_tp, target_tp, pair, table, table, max(1, len(table))) for pair in pairs
    ]
    return KvRequest(
        bytes_per_token=kv_blocks.bytes_per_token(geometry),
        pairs=len(pairs),
        descriptors=sum(len(blocks) for blocks in moved),
        bytes=sum(block.length for blocks in moved for block in blocks),
    )
