"""Which of two lists in the same order belong together, where no name tells: by when they began and by their sizes."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

NEAR_S = 0.25
"""A request reaches an engine within that of leaving its client: a router and a tokenizer lie between."""
REACH_S = 5.0
"""How far wall clocks of two hosts may be apart."""
LEAST_MATCHED = 0.8
"""At least that share must find its other half, or the order tells nothing."""
BETTER = 1.2
"""... and so many times as many as with any other shift of the clocks by more than NEAR_S."""
MOST_SHIFTS, MOST_PROBED = 4000, 200
SAME_SIZE = 0.05
"""Sizes are the same to a twentieth: bytes go by whole blocks of tokens."""


@dataclass(frozen=True, slots=True, eq=False)
class Order:
    """`row[i]` belongs to item i, -1 where none does; `shift_s` was added to the items' clock."""

    row: NDArray[np.intp]
    shift_s: float = 0.0

    @property
    def matched(self) -> int:
        return int((self.row >= 0).sum())


def by_time(
    item_s: Floats, item_tokens: Floats, row_s: Floats, row_tokens: Floats, *, same_clock: bool
) -> Order | None:
    """Return which row each item is, both sorted by time, with prompt tokens (NaN: unknown); None where none fits.

    The clock of the items is shifted as a whole, by up to REACH_S on the same clock, else by anything.
    """
    if not len(item_s) or not len(row_s):
        return None
    probed = np.unique(np.linspace(0, len(item_s) - 1, MOST_PROBED).astype(np.intp))
    # Some item must have its row: every shift that puts one of a few items on a row is tried.
    shifts = np.unique(np.concatenate([row_s - item_s[one] for one in probed[:: max(1, len(probed) // 5)]]))
    if same_clock:
        shifts = shifts[np.abs(shifts) <= REACH_S]
    if len(shifts) > MOST_SHIFTS:
        shifts = shifts[np.linspace(0, len(shifts) - 1, MOST_SHIFTS).astype(np.intp)]
    scores = np.array(
        [_fits(item_s[probed] + shift, item_tokens[probed], row_s, row_tokens).mean() for shift in shifts]
    )
    if not len(scores):
        return None
    best = int(scores.argmax())
    others = scores[np.abs(shifts - shifts[best]) > NEAR_S]
    if scores[best] < LEAST_MATCHED or scores[best] < BETTER * others.max(initial=0.0):
        return None
    alike = shifts[scores >= scores[best]]
    found = _assign(item_s + float(alike[len(alike) // 2]), item_tokens, row_s, row_tokens)
    taken = found >= 0
    if taken.mean() < LEAST_MATCHED:
        return None
    # A request is sent before it arrives: the least difference is the clocks'.
    return Order(found, 0.0 if same_clock else float((row_s[found[taken]] - item_s[taken]).min()))


def _fits(item_s: Floats, item_tokens: Floats, row_s: Floats, row_tokens: Floats) -> NDArray[np.bool_]:
    """Return which items have a row of their size within NEAR_S of them (the nearest on either side is looked at)."""
    after = np.searchsorted(row_s, item_s)
    fits = np.zeros(len(item_s), dtype=bool)
    for place in (np.clip(after, 0, len(row_s) - 1), np.clip(after - 1, 0, len(row_s) - 1)):
        fits |= (np.abs(row_s[place] - item_s) <= NEAR_S) & _same(item_tokens, row_tokens[place])
    return fits


def _same(one: Floats, other: Floats) -> NDArray[np.bool_]:
    return ~(np.abs(one - other) > np.maximum(2.0, 0.01 * np.maximum(one, other)))


def _assign(item_s: Floats, item_tokens: Floats, row_s: Floats, row_tokens: Floats) -> NDArray[np.intp]:
    """Give each item, in its turn, the nearest row of its size that is free."""
    found = np.full(len(item_s), -1, dtype=np.intp)
    free = np.ones(len(row_s), dtype=bool)
    low = np.searchsorted(row_s, item_s - NEAR_S)
    high = np.searchsorted(row_s, item_s + NEAR_S)
    for item in range(len(item_s)):
        near = np.arange(low[item], high[item])
        near = near[free[near] & _same(np.full(len(near), item_tokens[item]), row_tokens[near])]
        if near.size:
            found[item] = near[np.abs(row_s[near] - item_s[item]).argmin()]
            free[found[item]] = False
    return found


def by_size(sizes: Floats, tokens: Floats) -> NDArray[np.intp] | None:
    """Return the row of each transfer, where a run of rows without a gap has sizes in proportion to theirs.

    None where no run fits, or more than one does (all prompts alike).
    """
    count = len(sizes)
    if count < 2 or count > len(tokens):
        return None
    probed = np.unique(np.linspace(0, count - 1, MOST_PROBED).astype(np.intp))
    windows = np.lib.stride_tricks.sliding_window_view(tokens, count)[:, probed]
    with np.errstate(divide="ignore", invalid="ignore"):
        per_token = sizes[None, probed] / windows
    usual = np.median(per_token, axis=1, keepdims=True)
    # A last block is sent whole: small prompts have more bytes per token, never fewer.
    share = (np.abs(per_token - usual) <= SAME_SIZE * usual).mean(axis=1)
    fitting = np.flatnonzero(share >= LEAST_MATCHED)
    if len(fitting) != 1:
        return None
    rows: NDArray[np.intp] = np.arange(count) + fitting[0]
    return rows
