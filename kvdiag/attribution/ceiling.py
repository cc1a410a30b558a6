"""The narrow ceiling of a slow link, told apart from a slow host: best-case goodput per node, before and after."""

from dataclasses import dataclass

import numpy as np

from kvdiag.attribution.frame import Floats, Frame, Mask, Role
from kvdiag.model.missing import Missing

BEST = 0.9
"""The best tenth of busy periods: noise and contention spare some transfers, a slow link spares none."""
DROP = 0.7
NARROW = 0.6
"""Under a rate limit the median busy period runs near the best ones; under contention it is spread widely."""
HOST_MARGIN = 1.3
LEAST_PERIODS = 15


@dataclass(frozen=True, slots=True)
class Ceiling:
    """Bytes per second of the best tenth of a node's busy periods; `narrowness` is median / best in the incident."""

    role: Role
    node: str
    before: float
    after: float
    narrowness: float

    rule: str = f"best < {DROP:g}× and middle > {NARROW:.0%} of it, drop > {HOST_MARGIN:g}× the hosts' slowdown"

    def is_link(self, host: float) -> bool:
        """Whether it looks like a slow link, given by which factor the hosts' other stages slowed down."""
        drop = self.before / self.after
        return self.after < DROP * self.before and self.narrowness > NARROW and drop > HOST_MARGIN * host


def goodput_ceilings(frame: Frame) -> tuple[Ceiling, ...] | Missing:
    """Return the ceiling of every node with enough large transfers in both periods, lowest after/before first."""
    size = frame.number("bytes")
    wire = frame.stages.stage("wire_s")
    whole = frame.stages.stage("transfer_s") if wire is None else wire
    if size is None or whole is None:
        return Missing("requests have no bytes with a wire_s or transfer_s stage, so no goodput can be seen")
    first_step = frame.stages.stage("first_step_s")
    stop = frame.arrival_s + frame.stages.ttft_s - (0 if first_step is None else first_step)
    start = stop - whole
    found = []
    for role in ("decode", "prefill"):
        labels = frame.nodes(role)
        for code, node in enumerate(labels.names):
            here = (labels.codes == code) & (size > 0) & (whole > 0)
            before = _goodput(start, stop, size, here & ~frame.incident)
            after = _goodput(start, stop, size, here & frame.incident)
            if len(before) >= LEAST_PERIODS and len(after) >= LEAST_PERIODS:
                best = float(np.quantile(after, BEST))
                found.append(
                    Ceiling(role, node, float(np.quantile(before, BEST)), best, float(np.median(after)) / best)
                )
    if not found:
        return Missing(f"no node has {LEAST_PERIODS} large transfers in each period")
    return tuple(sorted(found, key=lambda one: one.after / one.before))


def _goodput(start: Floats, stop: Floats, size: Floats, rows: Mask) -> Floats:
    """Return bytes per second of each busy period (overlapping transfers are one) of at least median size."""
    chosen = np.flatnonzero(rows)
    if chosen.size == 0:
        return np.zeros(0)
    chosen = chosen[np.argsort(start[chosen])]
    ends = np.maximum.accumulate(stop[chosen])
    first = np.concatenate([[True], start[chosen][1:] >= ends[:-1]])
    period = np.cumsum(first) - 1
    amount = np.bincount(period, weights=size[chosen])
    opened = start[chosen][first]
    closed = ends[np.concatenate([np.flatnonzero(first)[1:] - 1, [len(chosen) - 1]])]
    rate = amount / np.maximum(closed - opened, 1e-9)
    large: Floats = rate[amount >= np.median(amount)]
    return large


def host_slowdown(frame: Frame) -> float:
    """Return by which factor the hosts' own stages slowed down: the median over stages of their median ratios, >= 1.

    Stages that a link cannot touch (register, set-up, handle, first step, post per descriptor): a busy host slows all
    of them, a fault of one of them only that one.
    """
    ratios = []
    descriptors = frame.number("descriptors")
    for name in ("register_s", "setup_s", "post_s", "first_step_s", "prefill_s"):
        stage = frame.stages.stage(name)
        if stage is None:
            continue
        values = stage
        if name == "post_s" and descriptors is not None:
            values = stage / np.maximum(descriptors, 1)
        if name == "prefill_s":
            tokens = frame.number("uncached_tokens")
            tokens = frame.number("prompt_tokens") if tokens is None else tokens
            if tokens is None:
                continue
            values = stage / np.maximum(tokens, 1)
        before, after = float(np.median(values[~frame.incident])), float(np.median(values[frame.incident]))
        if before > 1e-5:
            ratios.append(after / before)
    return max(1.0, float(np.median(ratios))) if ratios else 1.0
