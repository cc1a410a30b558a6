"""Waiting that a longer service time brought about: Lindley's recursion, with and without a cause's seconds.

Two stages wait for a server that may serve one request at a time: queue_s for the prefill worker, pull_wait_s for the
node's transfer slot.
"""

from dataclasses import dataclass

import numpy as np

from kvdiag.attribution.frame import Floats, Frame, Role

BEST_FIT = 0.25
"""The recursion must reproduce the recorded waits within a quarter of their mean, or the server is not such a queue."""
LEAST_SAMPLING = 0.999
IDLE_QUANTILE = 0.1
"""Even a free server is reached after a message or two: the tenth percentile of the waits is that overhead."""
WAITS: dict[str, tuple[Role, ...]] = {"pull_wait_s": ("decode", "prefill"), "queue_s": ("prefill",)}
"""Which stages wait, and on which side their server may be; the later stage first, for waits cascade backwards."""


@dataclass(frozen=True, slots=True)
class Occupancy:
    """The server behind the stage `waiting`, one per node of `side`, is held through the stage `until`.

    `misfit` is the mean absolute error of the recursion over the mean wait.
    """

    waiting: str
    side: Role
    until: str
    misfit: float


def find_occupancies(frame: Frame) -> tuple[Occupancy, ...]:
    """Return the waiting stages whose waits follow from one request at a time; every request must be recorded.

    W' = max(0, W + S - A) (Lindley 1952) with S the seconds up to `until` and A the time to the next arrival.
    """
    if frame.sampling < LEAST_SAMPLING:
        return ()
    found = (_best(frame, waiting, sides) for waiting, sides in WAITS.items())
    return tuple(one for one in found if one is not None and one.misfit <= BEST_FIT)


def _best(frame: Frame, waiting: str, sides: tuple[Role, ...]) -> Occupancy | None:
    recorded = frame.stages.stage(waiting)
    if recorded is None or recorded.mean() <= 0:
        return None
    idle = float(np.quantile(recorded, IDLE_QUANTILE))
    names = frame.stages.names
    best = None
    for side in sides:
        for until in names[names.index(waiting) + 1 :]:
            waits = _waits(frame, waiting, side, held_seconds(frame, waiting, until))
            misfit = float(np.abs(waits + idle - recorded).mean() / recorded.mean())
            if best is None or misfit < best.misfit:
                best = Occupancy(waiting, side, until, misfit)
    return best


def held_stages(frame: Frame, waiting: str, until: str) -> tuple[int, ...]:
    """Return the positions of the stages after `waiting`, up to and with `until`."""
    names = frame.stages.names
    return tuple(range(names.index(waiting) + 1, names.index(until) + 1))


def held_seconds(frame: Frame, waiting: str, until: str) -> Floats:
    """Return the seconds from the end of the wait to the end of the stage `until`."""
    held: Floats = frame.stages.seconds[:, held_stages(frame, waiting, until)].sum(axis=1)
    return held


def pushed_wait(frame: Frame, occupancy: Occupancy, removed: Floats) -> Floats:
    """Return the seconds that would not have been waited, had service been shorter by `removed` (>= 0)."""
    service = held_seconds(frame, occupancy.waiting, occupancy.until)
    shorter = np.maximum(service - np.maximum(removed, 0.0), 0.0)
    waits, relieved = (_waits(frame, occupancy.waiting, occupancy.side, one) for one in (service, shorter))
    pushed: Floats = np.where(frame.incident, np.maximum(waits - relieved, 0.0), 0.0)
    return pushed


def _waits(frame: Frame, waiting: str, side: Role, service: Floats) -> Floats:
    """Solve the recursion per node: W(n) = X(n) - min(0, X(1), ..., X(n)) with X the sums of S - A."""
    before = frame.stages.seconds[:, : frame.stages.names.index(waiting)].sum(axis=1)
    reached = frame.arrival_s + before
    labels = frame.nodes(side)
    waits = np.zeros(frame.rows)
    for code in np.unique(labels.codes):
        rows = np.flatnonzero(labels.codes == code)
        rows = rows[np.argsort(reached[rows], kind="stable")]
        steps = service[rows][:-1] - np.diff(reached[rows])
        walk = np.concatenate([[0.0], np.cumsum(steps)])
        waits[rows] = walk - np.minimum.accumulate(walk)
    return waits
