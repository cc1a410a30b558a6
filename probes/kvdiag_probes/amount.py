"""How much is measured of a message size, and what has been measured of it so far."""

from dataclasses import dataclass

from kvdiag_probes.datapath import Pass, Plan
from kvdiag_probes.distribution import Samples

_WALL_FACTOR, _WALL_SPARE_S = 10, 10.0
"""A run bounded by transfer time ends at ten times that, and ten seconds, of elapsed time: verification is slower."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Amount:
    """How much to measure of each size: `iterations`, or passes until `duration_s` seconds of transfer are over."""

    iterations: int | None
    duration_s: float | None
    warmup: int


@dataclass(slots=True)
class Tally:
    """The passes of one size: seconds of transfer, `reverse_s` of the peer's own, and bytes per second at best."""

    samples: Samples
    count: int = 0
    seconds: float = 0.0
    reverse_s: float = 0.0
    peak: float = 0.0

    def add(self, done: Pass, plan: Plan, streams: int, reverse_s: float) -> None:
        self.count += plan.slots
        self.seconds += done.elapsed_s
        self.reverse_s += reverse_s
        self.peak = max(self.peak, plan.bytes * streams / done.elapsed_s)
        self.samples.add(done.latencies_s)


def next_slots(tally: Tally, most: int, amount: Amount, elapsed_s: float) -> int:
    """Return how many messages the next pass has, at most `most`; 0 where enough was measured."""
    if amount.iterations is not None:
        return min(most, amount.iterations - tally.count)
    wanted_s = amount.duration_s or 0.0
    if tally.seconds < wanted_s and elapsed_s < wanted_s * _WALL_FACTOR + _WALL_SPARE_S:
        return most
    return 0
