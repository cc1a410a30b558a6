"""The shape of a model's KV cache, and the blocks that a transfer of it consists of."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class KvGeometry:
    """`head_size` in elements. With `mla` (multi-head latent attention) a token has one latent vector per layer, of
    `head_size` elements, instead of a K and a V for each head, and every tensor-parallel rank holds all of it.

    `layout` is the order within a block: hnd (heads, tokens, elements) or nhd (tokens, heads, elements).
    """

    layers: int
    kv_heads: int
    head_size: int
    dtype_bytes: int
    block_tokens: int
    mla: bool = False
    layout: Literal["hnd", "nhd"] = "hnd"


@dataclass(frozen=True, slots=True)
class Block:
    """One descriptor: bytes to move from an offset of the source's cache to one of the target's; its layer."""

    source: int
    target: int
    length: int
    layer: int
