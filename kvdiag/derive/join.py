"""Joins pieces of requests that arrive in any order, in bounded memory and time; nothing is dropped uncounted."""

import math
from collections import OrderedDict, deque
from dataclasses import dataclass, field

from kvdiag.derive.request_row import filled, request_row
from kvdiag.model.record import HandleTransfer, Key, RequestPiece
from kvdiag.model.transfer import TransferRecord

WAIT_S = 60.0
"""How long the other side of a request is waited for: twice vLLM's lease of KV blocks (kv_lease_duration, 30 s)."""
SETTLE_S = 5.5
"""How long a request with both sides waits for its transfers: another process may export the span of a transfer up to
5 s after it (OTEL_BSP_SCHEDULE_DELAY by default)."""
MOST_OPEN = 20_000
"""Requests waited for at a time (about 3 KB each): 3,600 a second for the time they settle."""
MOST_PIECES = 512
"""Pieces of one request; a transfer has one handle per pair of ranks, so 16 × 16 and both sides fit."""
REMEMBERED = 50_000
"""Identities of finished requests that are remembered, to tell a late piece from a new request."""


@dataclass(slots=True)
class JoinCounts:
    """Since the start: `late` pieces of requests that were finished already, `repeated` ones that said nothing new,
    `excess` ones of a request with MOST_PIECES, `nameless` ones without an identity or a time; requests emitted
    `joined` (both sides, or one engine that is both), `unjoined`, and of those `evicted` before their time.
    """

    late: int = 0
    repeated: int = 0
    excess: int = 0
    nameless: int = 0
    joined: int = 0
    unjoined: int = 0
    evicted: int = 0


@dataclass(slots=True, eq=False)
class _Group:
    first_s: float
    keys: set[Key] = field(default_factory=set)
    pieces: list[RequestPiece] = field(default_factory=list)
    transfers: list[HandleTransfer] = field(default_factory=list)
    settling: bool = False
    done: bool = False

    @property
    def size(self) -> int:
        return len(self.pieces) + len(self.transfers)


class Joiner:
    """`add` what sources say, `take` the rows that are due; times are monotonic seconds, given by the caller."""

    def __init__(self, wait_s: float = WAIT_S, settle_s: float = SETTLE_S, most_open: int = MOST_OPEN) -> None:
        self.counts = JoinCounts()
        self.wait_s, self.settle_s, self._most_open = wait_s, settle_s, most_open
        self._by_key: dict[Key, _Group] = {}
        self._open: OrderedDict[int, _Group] = OrderedDict()
        self._settling: deque[tuple[float, _Group]] = deque()
        self._finished: OrderedDict[Key, None] = OrderedDict()
        self._early: list[TransferRecord] = []

    @property
    def open(self) -> int:
        """How many requests are waited for."""
        return len(self._open)

    def add(self, piece: RequestPiece | HandleTransfer, now_s: float) -> None:
        """Take a piece in; it joins every request that shares an identity with it."""
        if not piece.keys or (isinstance(piece, HandleTransfer) and piece.duration_s is None and not piece.error):
            self.counts.nameless += 1
            return
        groups = {id(group): group for key in piece.keys if (group := self._by_key.get(key)) is not None}
        if not groups:
            if any(key in self._finished for key in piece.keys):
                self.counts.late += 1
                return
            group = _Group(first_s=now_s)
            self._open[id(group)] = group
        else:
            group = min(groups.values(), key=lambda one: one.first_s)
            for other in groups.values():
                if other is not group:
                    self._merge(group, other)
        self._put(group, piece)
        for key in piece.keys:
            group.keys.add(key)
            self._by_key[key] = group
        if not group.settling and _complete(group):
            group.settling = True
            self._settling.append((now_s + self.settle_s, group))
        while len(self._open) > self._most_open:
            self._evict()

    def take(self, now_s: float, most: float = math.inf) -> list[TransferRecord]:
        """Return the rows of requests that settled, or whose time is over, at most so many: fewer means that is all."""
        found = self._early if len(self._early) <= most else self._early[: int(most)]
        self._early = self._early[len(found) :]
        while len(found) < most and self._settling and self._settling[0][0] <= now_s:
            _, group = self._settling.popleft()
            if not group.done:
                self._finish(group, found, "")
        while len(found) < most and self._open:
            group = next(iter(self._open.values()))
            if group.first_s + self.wait_s > now_s:
                break
            self._finish(group, found, f"waited {self.wait_s:g} s")
        return found

    def drain(self) -> list[TransferRecord]:
        """Return the rows of all requests that are still waited for."""
        found, self._early = self._early, []
        while self._open:
            self._finish(next(iter(self._open.values())), found, "recording ended")
        return found

    def _put(self, group: _Group, piece: RequestPiece | HandleTransfer) -> None:
        if group.size >= MOST_PIECES:
            self.counts.excess += 1
        elif isinstance(piece, HandleTransfer):
            if piece in group.transfers:
                self.counts.repeated += 1
            else:
                group.transfers.append(piece)
        elif piece.side != "part" and any(_repeats(piece, one) for one in group.pieces):
            self.counts.repeated += 1
        else:
            group.pieces.append(piece)

    def _merge(self, group: _Group, other: _Group) -> None:
        other.done = True
        self._open.pop(id(other), None)
        both: list[RequestPiece | HandleTransfer] = [*other.pieces, *other.transfers]
        for piece in both:
            self._put(group, piece)
        for key in other.keys:
            self._by_key[key] = group
        group.keys |= other.keys

    def _evict(self) -> None:
        """Finish the request that has waited longest, to make room."""
        self.counts.evicted += 1
        group = next(iter(self._open.values()))
        self._finish(group, self._early, f"not waited for: {self._most_open} requests were open")

    def _finish(self, group: _Group, found: list[TransferRecord], why: str) -> None:
        group.done = True
        self._open.pop(id(group), None)
        for key in group.keys:
            self._by_key.pop(key, None)
            self._finished[key] = None
        while len(self._finished) > REMEMBERED:
            self._finished.popitem(last=False)
        row = request_row(group.pieces, group.transfers, why)
        if row is None:
            self.counts.nameless += group.size
        else:
            if _complete(group) or _alone(group):
                self.counts.joined += 1
            else:
                self.counts.unjoined += 1
            found.append(row)


def _repeats(one: RequestPiece, known: RequestPiece) -> bool:
    """Return whether a piece adds nothing to one of the same side: an exporter's retry, or a second attempt."""
    if one.side is None:
        return one == known
    return one.side == known.side and one.source == known.source and filled(known, one) is known


def _complete(group: _Group) -> bool:
    sides = {one.side for one in group.pieces}
    untold = sum(one.side is None for one in group.pieces)
    return "both" in sides or len(sides & {"prefill", "decode"}) + untold >= 2


def _alone(group: _Group) -> bool:
    """Return whether the only piece is of an engine that does not tell its side: then it does both."""
    return len(group.pieces) == 1 and group.pieces[0].side is None
