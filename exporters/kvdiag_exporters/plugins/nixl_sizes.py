"""How many bytes a list of NIXL descriptors stands for, at a cost that does not grow with every transfer."""

from typing import Any, NamedTuple

MOST_LOOKED_AT = 16_384
"""Descriptors of one plain list; a longer one is only counted, for looking at it would cost the engine milliseconds."""


class Lengths(NamedTuple):
    """The `number` of descriptors, their bytes together, each one's where all are alike; None where not known."""

    number: int
    total: int | None
    each: int | None


def lengths(given: Any) -> Lengths | None:
    """Return the lengths in what register_memory or prep_xfer_dlist takes; None where that is nothing known.

    Tuples (address, length, …), arrays of N × 3 or, with stride and count, N × 5, tensors, or a list that NIXL made.
    """
    shape = getattr(given, "shape", None)
    if shape is not None and len(shape) == 2 and shape[1] in (3, 5) and shape[0] > 0:
        column, counts = given[:, 1], given[:, 4] if shape[1] == 5 else None
        low, high = int(column.min()), int(column.max())
        count = int(counts.sum()) if counts is not None else int(shape[0])
        total = int((column * counts).sum()) if counts is not None else int(column.sum())
        return Lengths(count, total, low if low == high else None)
    if hasattr(given, "nbytes"):
        return Lengths(1, int(given.nbytes), int(given.nbytes))
    if hasattr(given, "descCount"):
        count = int(given.descCount())
        return _sum([int(given[i][1]) for i in range(count)]) if count <= MOST_LOOKED_AT else Lengths(count, None, None)
    if isinstance(given, list | tuple):
        if len(given) > MOST_LOOKED_AT:
            return Lengths(len(given), None, None)
        return _sum([int(one.nbytes) if hasattr(one, "nbytes") else int(one[1]) for one in given])
    return None


def _sum(found: list[int]) -> Lengths:
    return Lengths(len(found), sum(found), found[0] if found and min(found) == max(found) else None)


class PreparedLists:
    """What is known of prepared lists by their handles, the newest `most` of them."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lists: dict[Any, tuple[Lengths | None, str]] = {}

    def remember(self, handle: Any, known: Lengths | None, peer: str) -> None:
        if len(self._lists) >= self._most:
            self._lists.pop(next(iter(self._lists)), None)
        self._lists[getattr(handle, "_handle", handle)] = known, peer

    def chosen_bytes(self, handle: Any, count: int) -> int | None:
        """Return the bytes of so many descriptors of a list; None where they differ in length or are not known."""
        known, _ = self._lists.get(getattr(handle, "_handle", handle), (None, ""))
        return None if known is None or known.each is None else count * known.each

    def peer(self, handle: Any) -> str:
        """Return the agent whose memory a prepared list is; empty where it is not known."""
        return self._lists.get(getattr(handle, "_handle", handle), (None, ""))[1]
