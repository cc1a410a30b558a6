"""Queue seconds that a longer service time brought about: Lindley's recursion, with and without a cause's seconds."""

from dataclasses import dataclass

import numpy as np

from kvdiag.attribution.frame import Floats, Frame

BEST_FIT = 0.25
"""The recursion must reproduce the recorded waits within a quarter of their mean, or the worker is not such a queue."""
LEAST_SAMPLING = 0.999


@dataclass(frozen=True, slots=True)
class Occupancy:
    """A prefill worker serves one request at a time and is held through the stage `until`; `misfit` is relative."""

    until: str
    misfit: float


def find_occupancy(frame: Frame) -> Occupancy | None:
    """Return through which stage a request holds its prefill worker, or None where waits do not follow from it.

    W' = max(0, W + S - A) (Lindley 1952) with S the seconds up to that stage and A the time to the next arrival;
    every request must have been recorded.
    """
    queue = frame.stages.stage("queue_s")
    if queue is None or frame.sampling < LEAST_SAMPLING or queue.mean() <= 0:
        return None
    best = None
    names = [name for name in frame.stages.names if name != "queue_s"]
    for name in names:
        waits = _waits(frame, held_seconds(frame, name))
        misfit = float(np.abs(waits - queue).mean() / queue.mean())
        if best is None or misfit < best.misfit:
            best = Occupancy(name, misfit)
    return best if best is not None and best.misfit <= BEST_FIT else None


def held_seconds(frame: Frame, until: str) -> Floats:
    """Return the seconds from the end of the queue to the end of the stage `until`."""
    names = [name for name in frame.stages.names if name != "queue_s"]
    chosen = [frame.stages.names.index(name) for name in names[: names.index(until) + 1]]
    held: Floats = frame.stages.seconds[:, chosen].sum(axis=1)
    return held


def pushed_queue(frame: Frame, occupancy: Occupancy, removed: Floats) -> Floats:
    """Return the queue seconds that would not have been waited, had service been shorter by `removed` (>= 0)."""
    service = held_seconds(frame, occupancy.until)
    relieved = _waits(frame, np.maximum(service - np.maximum(removed, 0.0), 0.0))
    pushed: Floats = np.where(frame.incident, np.maximum(_waits(frame, service) - relieved, 0.0), 0.0)
    return pushed


def _waits(frame: Frame, service: Floats) -> Floats:
    """Solve the recursion per prefill node: W(n) = X(n) - min(0, X(1), ..., X(n)) with X the sums of S - A."""
    labels = frame.nodes("prefill")
    waits = np.zeros(frame.rows)
    for code in np.unique(labels.codes):
        rows = np.flatnonzero(labels.codes == code)
        steps = service[rows][:-1] - np.diff(frame.arrival_s[rows])
        walk = np.concatenate([[0.0], np.cumsum(steps)])
        waits[rows] = walk - np.minimum.accumulate(walk)
    return waits
