"""Where a request's tokens lie in the KV pool: one run per layer, or scattered token by token.

A pool is laid out layer by layer: the slot of token t in layer l is l * POOL_TOKENS + t. Each placement owns one half
of the tokens, so that a change of placement never overwrites a transfer that is still on its way.
"""

import random
from typing import TYPE_CHECKING

import numpy as np

from kvdiag_probes.demo.workload import LAYERS, POOL_TOKENS

if TYPE_CHECKING:
    from numpy.typing import NDArray

_HALF = POOL_TOKENS // 2


class Ring:
    """Hands out token positions round and round; `scattered` visits them in a shuffled order (a fragmented pool)."""

    def __init__(self, *, scattered: bool, seed: int = 0) -> None:
        order = list(range(_HALF))
        if scattered:
            random.Random(seed).shuffle(order)  # noqa: S311 - a layout, not a secret
        self._order = np.array(order, dtype=np.int32) + np.int32(_HALF if scattered else 0)
        self._next = 0

    def take(self, tokens: int) -> "NDArray[np.int32]":
        """Return the pool slots of the next `tokens` tokens, layer by layer; a run never wraps."""
        if self._next + tokens > _HALF:
            self._next = 0
        positions = self._order[self._next : self._next + tokens]
        self._next += tokens
        layers = np.arange(LAYERS, dtype=np.int32)[:, None] * np.int32(POOL_TOKENS)
        return (layers + positions[None, :]).reshape(-1)


def runs(slots: "NDArray[np.int32]") -> list[tuple[int, int]]:
    """Return (first slot, number of slots) of each stretch of adjacent slots, as NIXL merges descriptors."""
    breaks = np.flatnonzero(np.diff(slots) != 1) + 1
    starts = np.concatenate(([0], breaks))
    ends = np.concatenate((breaks, [len(slots)]))
    return [(int(slots[start]), int(end - start)) for start, end in zip(starts, ends, strict=True)]
