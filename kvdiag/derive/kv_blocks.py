"""Which bytes move between two tensor-parallel ranks when a request's KV cache moves: sizes, counts, descriptors."""

from collections.abc import Iterable, Sequence

from kvdiag.errors import UsageError
from kvdiag.model.kv_geometry import Block, KvGeometry


def planes(geometry: KvGeometry) -> int:
    """Return how many tensors a layer has: K and V, or the one latent of MLA."""
    return 1 if geometry.mla else 2


def bytes_per_token(geometry: KvGeometry) -> int:
    """Return the bytes of one token in all layers, before any tensor parallelism.

    layers × (K and V) × KV heads × head size × bytes per element; for MLA layers × latent size × bytes per element
    (DeepSeek-V2, arXiv:2405.04434, table 1: (d_c + d_h^R) elements per layer).
    """
    heads = 1 if geometry.mla else geometry.kv_heads
    return geometry.layers * planes(geometry) * heads * geometry.head_size * geometry.dtype_bytes


def blocks_of(geometry: KvGeometry, tokens: int) -> int:
    """Return how many blocks hold so many tokens; engines move whole blocks."""
    return -(-tokens // geometry.block_tokens)


def heads_of(geometry: KvGeometry, ranks: int, rank: int) -> range:
    """Return the KV heads that a tensor-parallel rank holds.

    With more ranks than heads, neighbouring ranks hold a replica each. UsageError where heads and ranks do not divide.
    """
    if geometry.mla:
        return range(1)
    heads = geometry.kv_heads
    if heads % ranks and ranks % heads:
        raise UsageError(
            f"--prefill-tp/--decode-tp: {heads} KV heads are not divisible among {ranks} ranks; engines refuse this too"
        )
    if ranks > heads:
        head = rank // (ranks // heads)
        return range(head, head + 1)
    share = heads // ranks
    return range(rank * share, (rank + 1) * share)


def exchanges(geometry: KvGeometry, source_ranks: int, target_ranks: int) -> tuple[tuple[int, int], ...]:
    """Return the (source rank, target rank) pairs that move something; a replica is fetched from one holder only.

    Replicas are spread over the targets that need them, so that no source serves all.
    """
    pairs = []
    for target in range(target_ranks):
        need = heads_of(geometry, target_ranks, target)
        for head in sorted({_first_shared(geometry, source_ranks, head) for head in need}):
            holders = [r for r in range(source_ranks) if head in heads_of(geometry, source_ranks, r)]
            pairs.append((holders[target % len(holders)], target))
    return tuple(pairs)


def rank_bytes(geometry: KvGeometry, ranks: int, blocks: int) -> int:
    """Return the bytes of so many blocks in one rank's cache."""
    return geometry.layers * planes(geometry) * blocks * _block_bytes(geometry, ranks)


def descriptors(
    geometry: KvGeometry,
    source_ranks: int,
    target_ranks: int,
    pair: tuple[int, int],
    source_table: Sequence[int],
    target_table: Sequence[int],
    pool_blocks: int,
) -> tuple[Block, ...]:
    """Return what moves from one source rank to one target rank, one entry per contiguous piece, layer by layer.

    A cache is layers × (K, V) tensors of `pool_blocks` blocks, one after another; block i of the request lies at
    `source_table[i]` and `target_table[i]`. With equal parallelism a piece is a whole block. Otherwise it is the
    shared heads of a block: contiguous in the hnd layout, one piece for every token in nhd.
    """
    mine, theirs = heads_of(geometry, source_ranks, pair[0]), heads_of(geometry, target_ranks, pair[1])
    shared = range(max(mine.start, theirs.start), min(mine.stop, theirs.stop))
    row = geometry.head_size * geometry.dtype_bytes
    pieces = list(_pieces(geometry, mine, theirs, shared, row))
    sizes = _block_bytes(geometry, source_ranks), _block_bytes(geometry, target_ranks)
    found = []
    for plane in range(geometry.layers * planes(geometry)):
        for source_block, target_block in zip(source_table, target_table, strict=True):
            source = (plane * pool_blocks + source_block) * sizes[0]
            target = (plane * pool_blocks + target_block) * sizes[1]
            layer = plane // planes(geometry)
            found += [Block(source + a, target + b, length, layer) for a, b, length in pieces]
    return tuple(found)


def coalesce(blocks: Iterable[Block]) -> tuple[Block, ...]:
    """Join pieces that follow each other at both ends, as NIXL's prepared lists do."""
    joined: list[Block] = []
    for block in blocks:
        last = joined[-1] if joined else None
        if last and (last.source + last.length, last.target + last.length) == (block.source, block.target):
            joined[-1] = Block(last.source, last.target, last.length + block.length, last.layer)
        else:
            joined.append(block)
    return tuple(joined)


def _block_bytes(geometry: KvGeometry, ranks: int) -> int:
    heads = len(heads_of(geometry, ranks, 0))
    return geometry.block_tokens * heads * geometry.head_size * geometry.dtype_bytes


def _first_shared(geometry: KvGeometry, ranks: int, head: int) -> int:
    """Return the first head of the source rank's share that holds `head`: one transfer brings the whole share."""
    if geometry.mla:
        return 0
    share = max(1, geometry.kv_heads // ranks)
    return head // share * share


def _pieces(
    geometry: KvGeometry, mine: range, theirs: range, shared: range, row: int
) -> Iterable[tuple[int, int, int]]:
    if len(mine) == len(theirs) == len(shared):
        yield 0, 0, geometry.block_tokens * len(mine) * row
    elif geometry.layout == "hnd":
        step = geometry.block_tokens * row
        yield (shared.start - mine.start) * step, (shared.start - theirs.start) * step, len(shared) * step
    else:
        for token in range(geometry.block_tokens):
            yield (
                (token * len(mine) + shared.start - mine.start) * row,
                (token * len(theirs) + shared.start - theirs.start) * row,
                len(shared) * row,
            )
