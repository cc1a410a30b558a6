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
OF_THE_LINK = 0.1
"""Without a baseline, a ceiling below a tenth of what the link reports is no healthy one (recorded with vLLM over TCP:
52 to 69 %, and 4 % of a link that was limited to that; simulated clusters: 40 % or more), if it is narrow as ..."""
LIMITED = 0.88
"""... a rate limit makes it (recorded: 96 to 98 %, without one 20 to 74 %), ..."""
ALIKE = 1.3
APART = 2.0
"""... and small transfers run into it as large ones do, of at most half the size: what takes the same time for every
size is no limit of a rate."""
STANDING_RULE = f"< {OF_THE_LINK:.0%} of the reported speed, and middle > {LIMITED:.0%} of it"


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


def standing_ceilings(frame: Frame) -> tuple[Ceiling, ...] | Missing:
    """Return the ceilings, far below what their links report (`before`), to which all busy periods of a node are held.

    For a frame without a baseline.
    """
    size, speeds = frame.number("bytes"), frame.rates("nic.link_gbps")
    if not speeds:
        return Missing("nic.link_gbps was not recorded")
    name = next((one for one in ("wire_s", "transfer_s") if one in frame.stages.names), None)
    whole = None if name is None else frame.stages.stage(name)
    if size is None or whole is None or name is None:
        return Missing("requests have no bytes with a wire_s or transfer_s stage, so no goodput can be seen")
    first_step = frame.stages.stage("first_step_s")
    stop = frame.arrival_s + frame.stages.ttft_s - (0 if first_step is None else first_step)
    found = []
    for role in ("decode", "prefill"):
        labels = frame.nodes(role)
        for code, node in enumerate(labels.names):
            here = (labels.codes == code) & (size > 0) & (whole > 0)
            amount, rate = _busy_periods(stop - whole, stop, size, here)
            large = amount >= np.median(amount) if len(amount) else np.zeros(0, dtype=bool)
            if node not in speeds or large.sum() < LEAST_PERIODS:
                continue
            best, middle, reported = (
                float(np.quantile(rate[large], BEST)), float(np.median(rate[large])), speeds[node].base / 8e-9
            )  # fmt: skip
            if best < OF_THE_LINK * reported and middle > LIMITED * best and _one_rate(amount, rate):
                found.append(Ceiling(role, node, reported, best, middle / best, middle / best, rule=STANDING_RULE))
    return tuple(found)


def _one_rate(amount: Floats, rate: Floats) -> bool:
    """Return whether the smaller half of the busy periods has the rate of the larger half, and they differ in size."""
    large = amount >= np.median(amount)
    if not 0 < large.sum() < len(large) or np.median(amount[large]) < APART * np.median(amount[~large]):
        return False
    return bool(np.median(rate[large]) < ALIKE * np.median(rate[~large]))


def _single(size: Floats, whole: Floats, rows: Mask) -> float:
    """Return median / best tenth of the bytes per second of single transfers of at least median size."""
    large = rows & (size >= np.median(size[rows]))
    rate = size[large] / whole[large]
    return float(np.median(rate) / np.quantile(rate, BEST))


def _goodput(start: Floats, stop: Floats, size: Floats, rows: Mask) -> Floats:
    """Return bytes per second of each busy period of at least median size."""
    amount, rate = _busy_periods(start, stop, size, rows)
    return rate[amount >= np.median(amount)] if len(amount) else rate


def _busy_periods(start: Floats, stop: Floats, size: Floats, rows: Mask) -> tuple[Floats, Floats]:
    """Return bytes, and bytes per second, of each busy period: overlapping transfers are one."""
    chosen = np.flatnonzero(rows)
    if chosen.size == 0:
        return np.zeros(0), np.zeros(0)
    chosen = chosen[np.argsort(start[chosen])]
    ends = np.maximum.accumulate(stop[chosen])
    first = np.concatenate([[True], start[chosen][1:] >= ends[:-1]])
    period = np.cumsum(first) - 1
    amount: Floats = np.bincount(period, weights=size[chosen]).astype(np.float64)
    opened = start[chosen][first]
    closed = ends[np.concatenate([np.flatnonzero(first)[1:] - 1, [len(chosen) - 1]])]
    return amount, amount / np.maximum(closed - opened, 1e-9)


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
