"""The transfers that the probe compares: one request's blocks in several layouts, equal in bytes."""

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

from kvdiag.derive import kv_blocks
from kvdiag.errors import UsageError
from kvdiag.model.kv_geometry import Block, KvGeometry
from kvdiag.model.probe_kv import KvMode, KvRequest

Pairs = tuple[tuple[int, int], ...]
"""(prefill rank, decode rank) of each exchange."""
MODES: tuple[KvMode, ...] = ("block", "layer", "coalesced", "contiguous")
_MOST_CONTIGUOUS = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """`groups` are posted one after another; `source_bytes` and `target_bytes` are what the caches hold.

    `pair` is None where the exchanges of all ranks are moved together.
    """

    pair: tuple[int, int] | None
    mode: KvMode
    tokens: int
    groups: tuple[tuple[Block, ...], ...]
    source_bytes: int
    target_bytes: int

    @property
    def key(self) -> tuple[str, int, tuple[int, int] | None]:
        """What tells it from the other shapes of a probe."""
        return self.mode, self.tokens, self.pair

    @property
    def descriptors(self) -> int:
        return sum(len(group) for group in self.groups)

    @property
    def bytes(self) -> int:
        return sum(block.length for group in self.groups for block in group)


def measured_pairs(pairs: Pairs, which: Literal["first", "each", "all"]) -> tuple[Pairs, ...]:
    """Return what is moved at a time: the first pair; all pairs together; or each pair alone, and then all."""
    if which == "first" or len(pairs) == 1:
        return (pairs[:1],)
    return (pairs,) if which == "all" else (*((pair,) for pair in pairs), pairs)


def shape(geometry: KvGeometry, source_tp: int, target_tp: int, pairs: Pairs, tokens: int, mode: KvMode) -> Shape:
    """Return one layout of one request, in caches with one block to spare, so that tensors are never adjacent.

    The caches of the ranks of several pairs lie side by side. UsageError where the request is larger than the 1 GiB
    that one contiguous message may have.
    """
    count = kv_blocks.blocks_of(geometry, tokens)
    pool = count + 1
    here: Sequence[int] = range(count)
    there: Sequence[int] = range(count)
    if mode in ("block", "layer"):
        here, there = (random.Random(seed).sample(range(pool), count) for seed in (1, 2))  # noqa: S311 - a layout
    source = _Caches([pair[0] for pair in pairs], kv_blocks.rank_bytes(geometry, source_tp, pool))
    target = _Caches([pair[1] for pair in pairs], kv_blocks.rank_bytes(geometry, target_tp, pool))
    groups: list[tuple[Block, ...]] = []
    written: dict[int, int] = defaultdict(int)
    for pair in pairs:
        blocks = kv_blocks.descriptors(geometry, source_tp, target_tp, pair, here, there, pool)
        total = sum(block.length for block in blocks)
        if total > _MOST_CONTIGUOUS:
            raise UsageError(f"--tokens: {tokens} are {total} bytes for one pair of ranks; at most 1 GiB: give fewer")
        if mode == "coalesced":
            blocks = kv_blocks.coalesce(blocks)
        if mode == "contiguous":
            blocks = (Block(0, written[pair[1]], total, 0),)
            written[pair[1]] += total
        at, to = source.starts[pair[0]], target.starts[pair[1]]
        moved = [Block(block.source + at, block.target + to, block.length, block.layer) for block in blocks]
        if mode == "layer":
            groups += [tuple(group) for _, group in groupby(moved, key=lambda block: block.layer)]
        else:
            groups.append(tuple(moved))
    return Shape(
        pair=pairs[0] if len(pairs) == 1 else None,
        mode=mode,
        tokens=tokens,
        groups=tuple(groups),
        source_bytes=source.bytes,
        target_bytes=target.bytes,
    )


class _Caches:
    """Where the cache of each rank begins."""

    def __init__(self, ranks: Sequence[int], each: int) -> None:
        self.starts = {rank: number * each for number, rank in enumerate(dict.fromkeys(ranks))}
        self.bytes = len(self.starts) * each


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
