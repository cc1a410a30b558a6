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
    """Bytes per second of the best tenth of a node's busy periods; `narrowness` is median / best in the incident.

    `sharpness` is the same of single large transfers, where that is higher: they may overlap, each at its own limit.
    """

    role: Role
    node: str
    before: float
    after: float
    narrowness: float
    sharpness: float

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
                narrow = float(np.median(after)) / best
                single = _single(size, whole, here & frame.incident)
                found.append(Ceiling(role, node, float(np.quantile(before, BEST)), best, narrow, max(narrow, single)))
    if not found:
        return Missing(f"no node has {LEAST_PERIODS} large transfers in each period")
    return tuple(sorted(found, key=lambda one: one.after / one.before))


def _single(size: Floats, whole: Floats, rows: Mask) -> float:
    """Return median / best tenth of the bytes per second of single transfers of at least median size."""
    large = rows & (size >= np.median(size[rows]))
    rate = size[large] / whole[large]
    return float(np.median(rate) / np.quantile(rate, BEST))


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
    """Return by which factor the hosts slowed down: the second largest ratio of medians over their stages, >= 1.

    Stages that a link cannot touch, per token or descriptor where it drives them. A busy host slows several of them,
    a fault in one of them (registration, say) only that one: hence the second largest.
    """
    base, incident = ~frame.incident, frame.incident
    ratios = []
    for name, per in _HOST_STAGES.items():
        stage = frame.stages.stage(name)
        units = [column for one in per if (column := frame.number(one)) is not None][:1]
        if stage is None or (per and not units):
            continue
        values = stage / np.maximum(units[0], 1.0) if units else stage
        before, after = float(np.median(values[base])), float(np.median(values[incident]))
        if np.median(stage[base]) > LEAST_STAGE_S:
            ratios.append(after / before)
    ratios.sort(reverse=True)
    return max(1.0, ratios[min(1, len(ratios) - 1)]) if ratios else 1.0


_HOST_STAGES: dict[str, tuple[str, ...]] = {
    "prefill_s": ("uncached_tokens", "prompt_tokens"),
    "setup_s": (),
    "register_s": (),
    "post_s": ("descriptors",),
    "first_step_s": (),
}
LEAST_STAGE_S = 2e-5
"""Shorter stages are the clock's own noise."""
