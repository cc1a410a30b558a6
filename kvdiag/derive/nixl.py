"""Totals and transfers from the events of NIXL's rings."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from kvdiag.model.nixl import NixlRing, NixlTransfer

_DIRECTIONS = {"tx_bytes": "write", "rx_bytes": "read"}


def transfers(events: Sequence[tuple[str, int]]) -> Iterator[NixlTransfer]:
    """Yield each transfer: NIXL writes post time, time, bytes and number of requests as one batch, in this order."""
    for (first, post), (second, xfer), (third, size) in zip(events, events[1:], events[2:], strict=False):
        if (first, second) == ("xfer_post_time", "xfer_time") and third in _DIRECTIONS:
            yield NixlTransfer(direction=_DIRECTIONS[third], bytes=size, post_s=post / 1e6, xfer_s=xfer / 1e6)


@dataclass(slots=True)
class RingTotals:
    """Running totals of one ring over many readings, whether or not somebody else consumes it.

    `totals` sums the values and `counts` the events by name; `missed` counts events consumed between two readings.
    """

    totals: dict[str, int] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    missed: int = 0
    _seen: int = 0

    def update(self, ring: NixlRing) -> tuple[tuple[str, int], ...]:
        """Add what was written since the last reading, and return these events."""
        mask = ring.capacity - 1
        waiting = len(ring.events)
        if ring.write_position < self._seen and ring.read_position == 0:
            # Only a new agent of this name puts both positions back; a consumer's stands just behind the writer's.
            fresh = waiting
        else:
            fresh = (ring.write_position - self._seen) & mask
        self._seen = ring.write_position
        self.missed += max(0, fresh - waiting)
        new = ring.events[waiting - min(fresh, waiting) :]
        for name, value in new:
            self.totals[name] = self.totals.get(name, 0) + value
            self.counts[name] = self.counts.get(name, 0) + 1
        return new
