"""A longer way, told apart from a slow host and from what meets only some transfers: the floor of small ones rose."""

from dataclasses import dataclass

import numpy as np

from kvdiag.attribution.frame import Frame, Role
from kvdiag.model.missing import Missing

FLOOR = 0.1
"""The quickest tenth: a busy host, loss and congestion spare some transfers, a longer way spares none."""
RISE = 2.5
"""A tenth that takes so many times as long, beyond the hosts' own slowdown, is another way. Recorded over TCP: 50 times
with 20 ms more, up to 1.9 times where only the hosts were busier."""
EVEN = 0.3
"""What a longer way adds it adds to each transfer: the floor rose by more than this share of what the middle did."""
HOST_MARGIN = 1.3
LEAST_TRANSFERS = 15


@dataclass(frozen=True, slots=True)
class Floor:
    """Seconds of the quickest tenth of a node's small transfers; `added` / `middle` what it and the median rose by."""

    role: Role
    node: str
    before: float
    after: float
    middle: float

    rule: str = f"> {RISE:g}×, and by more than {EVEN:.0%} of what the median rose by"

    def is_longer(self, host: float) -> bool:
        """Whether it looks like a longer way, given by which factor the hosts' other stages slowed down."""
        added, ratio = self.after - self.before, self.after / self.before
        return ratio > RISE and ratio > HOST_MARGIN * host and added > EVEN * self.middle


def transfer_floors(frame: Frame) -> tuple[Floor, ...] | Missing:
    """Return the floor of every node with enough small transfers in both periods: those of at most median size."""
    size, wire = frame.number("bytes"), frame.stages.stage("wire_s")
    if size is None or wire is None:
        return Missing("requests have no bytes with a wire_s stage")
    moved = (size > 0) & (wire > 0)
    if not moved.any():
        return Missing("no request moved bytes")
    small = moved & (size <= np.median(size[moved]))
    found = []
    for role in ("decode", "prefill"):
        labels = frame.nodes(role)
        for code, node in enumerate(labels.names):
            here = small & (labels.codes == code)
            before, after = wire[here & ~frame.incident], wire[here & frame.incident]
            if min(len(before), len(after)) >= LEAST_TRANSFERS:
                low, high = float(np.quantile(before, FLOOR)), float(np.quantile(after, FLOOR))
                found.append(Floor(role, node, low, high, float(np.median(after) - np.median(before))))
    return tuple(found) if found else Missing(f"no node has {LEAST_TRANSFERS} small transfers in each period")
