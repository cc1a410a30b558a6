"""Waiting that a longer service time brought about: Lindley's recursion, with and without a cause's seconds.

Two stages wait for a server that may serve one request at a time: queue_s for the prefill worker, pull_wait_s for the
node's transfer slot.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvdiag.attribution.columns import Columns
from kvdiag.attribution.frame import Floats, Frame, Mask, Role

BEST_FIT = 0.25
"""The recursion must reproduce the recorded waits within a quarter of their mean, or the server is not such a queue."""
LEAST_DETERMINED = 0.7
"""... or explain seven tenths of their variance: where waits are short, the scheduler's noise is most of their mean.
Servers that serve several requests at once miss both by far (the recursion predicts many times the recorded waits)."""
LEAST_SAMPLING = 0.999
ENOUGH_ROWS = 20_000
"""Whether a server serves one at a time shows on that many requests as well as on a million."""
IDLE_QUANTILE = 0.1
"""Even a free server is reached after a message or two: the tenth percentile of the waits is that overhead."""
LEAST_GAPS = 10
"""A turnaround is estimated from at least this many requests that found the server busy."""
EARLIEST = 0.25
"""A server that is free earlier than that is not held through the stage at all."""
WAITS: dict[str, tuple[Role, ...]] = {"pull_wait_s": ("decode", "prefill"), "queue_s": ("prefill",)}
"""Which stages wait, and on which side their server may be; the later stage first, for waits cascade backwards."""


@dataclass(frozen=True, slots=True)
class Occupancy:
    """The server behind the stage `waiting`, one per node of `side`, is held through the stage `until`.

    `misfit` is the mean absolute error of the recursion over the mean wait, `determined` its coefficient of
    determination (1 - squared error / variance of the waits).
    """

    waiting: str
    side: Role
    until: str
    misfit: float
    determined: float

    @property
    def fits(self) -> bool:
        """Whether the waits follow from the service closely enough to be recomputed."""
        return self.misfit <= BEST_FIT or self.determined >= LEAST_DETERMINED


def find_occupancies(frame: Frame) -> tuple[Occupancy, ...]:
    """Return the waiting stages whose waits follow from one request at a time; every request must be recorded.

    W' = max(0, W + S - A) (Lindley 1952) with S the seconds up to `until` and A the time to the next arrival.
    """
    if frame.sampling < LEAST_SAMPLING or frame.windowed:
        return ()
    first = frame.head(ENOUGH_ROWS)
    found = (_best(first, waiting, sides) for waiting, sides in WAITS.items())
    return tuple(one for one in found if one is not None and one.fits)


def _best(frame: Frame, waiting: str, sides: tuple[Role, ...]) -> Occupancy | None:
    recorded = frame.stages.stage(waiting)
    if recorded is None or recorded.mean() <= 0:
        return None
    idle = float(np.quantile(recorded, IDLE_QUANTILE))
    names = frame.stages.names
    best = None
    for side in sides:
        for until in names[names.index(waiting) + 1 :]:
            held = held_seconds(frame, waiting, until)
            error = _waits(frame, waiting, side, _occupied(frame, waiting, side, held)) + idle - recorded
            misfit = float(np.abs(error).mean() / recorded.mean())
            determined = 1 - float(np.mean(error**2)) / max(float(recorded.var()), 1e-18)
            if best is None or determined > best.determined:
                best = Occupancy(waiting, side, until, misfit, determined)
    return best


def held_stages(frame: Frame, waiting: str, until: str) -> tuple[int, ...]:
    """Return the positions of the stages after `waiting`, up to and with `until`."""
    names = frame.stages.names
    return tuple(range(names.index(waiting) + 1, names.index(until) + 1))


def held_seconds(frame: Frame, waiting: str, until: str) -> Floats:
    """Return the seconds from the end of the wait to the end of the stage `until`."""
    held: Floats = frame.stages.seconds[:, held_stages(frame, waiting, until)].sum(axis=1)
    return held


def above_usual(frame: Frame, columns: Columns, stage: int) -> Floats:
    """Return each request's seconds of a stage above what the baseline needed for its tokens and bytes, at least 0."""
    usual = columns.matrix[:, [0, *(columns.drivers.start + j for j in columns.stage_drivers[stage])]]
    seconds = frame.stages.seconds[:, stage]
    line, *_ = np.linalg.lstsq(usual[~frame.incident], seconds[~frame.incident], rcond=None)
    above: Floats = np.maximum(seconds - usual @ line, 0.0)
    return above


def taken(above: Floats, touched: Mask, booked: float) -> Floats:
    """Return `booked` seconds as the `touched` requests had them: a stall is one request's, and others wait behind it.

    A dose says what a request got on average; where waits are recomputed, who was kept how long decides.
    """
    whole = float(above[touched].sum())
    share = min(1.0, max(booked, 0.0) / whole) if whole > 0 else 0.0
    return np.where(touched, share * above, 0.0)


def pushed_wait(frame: Frame, occupancy: Occupancy, removed: Floats) -> Floats:
    """Return the seconds that would not have been waited, had service been shorter by `removed` (>= 0)."""
    service = held_seconds(frame, occupancy.waiting, occupancy.until)
    shorter = np.maximum(service - np.maximum(removed, 0.0), 0.0)
    between = _turnaround(frame, occupancy.waiting, occupancy.side, service)
    waits, relieved = (
        _waits(frame, occupancy.waiting, occupancy.side, np.maximum(one + between, 0.0)) for one in (service, shorter)
    )
    pushed: Floats = np.where(frame.incident, np.maximum(waits - relieved, 0.0), 0.0)
    return pushed


def _waits(frame: Frame, waiting: str, side: Role, service: Floats) -> Floats:
    """Solve the recursion per node: W(n) = X(n) - min(0, X(1), ..., X(n)) with X the sums of S - A."""
    reached = _reached(frame, waiting)
    waits = np.zeros(frame.rows)
    for rows in _in_turn(frame, side, reached):
        steps = service[rows][:-1] - np.diff(reached[rows])
        walk = np.concatenate([[0.0], np.cumsum(steps)])
        waits[rows] = walk - np.minimum.accumulate(walk)
    return waits


def _occupied(frame: Frame, waiting: str, side: Role, service: Floats) -> Floats:
    """Return the seconds for which each request keeps the server from the next one."""
    occupied: Floats = np.maximum(service + _turnaround(frame, waiting, side, service), 0.0)
    return occupied


def _turnaround(frame: Frame, waiting: str, side: Role, service: Floats) -> Floats:
    """Return the seconds that a server needs between two requests, by period: the median gap before one that waited.

    It is what no stage records, such as giving back what the transfer held; negative where the server is free before
    the stage is seen to end (the other side's notification travels), down to minus EARLIEST of the mean service.
    """
    recorded = frame.stages.seconds[:, frame.stages.names.index(waiting)]
    reached = _reached(frame, waiting)
    begun = reached + recorded
    gap = np.full(frame.rows, np.nan)
    for rows in _in_turn(frame, side, reached):
        ended = (begun + service)[rows[:-1]]
        # Only where the server was still busy when the next request reached it.
        gap[rows[1:]] = np.where(ended > reached[rows[1:]], begun[rows[1:]] - ended, np.nan)
    between = np.zeros(frame.rows)
    for period in (~frame.incident, frame.incident):
        gaps = gap[period & np.isfinite(gap)]
        if len(gaps) >= LEAST_GAPS:
            between[period] = max(float(np.median(gaps)), -EARLIEST * float(service[period].mean()))
    return between


def _reached(frame: Frame, waiting: str) -> Floats:
    before: Floats = frame.stages.seconds[:, : frame.stages.names.index(waiting)].sum(axis=1)
    return frame.arrival_s + before


def _in_turn(frame: Frame, side: Role, reached: Floats) -> Iterator[NDArray[np.int64]]:
    """Yield the rows of each node in the order in which they reached its server."""
    codes = frame.nodes(side).codes
    for code in np.unique(codes):
        rows = np.flatnonzero(codes == code)
        yield rows[np.argsort(reached[rows], kind="stable")]
