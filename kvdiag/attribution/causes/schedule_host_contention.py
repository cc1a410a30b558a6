"""schedule.host_contention: the engines' processes wait for their host's processors, memory or disks."""

import numpy as np

from kvdiag.attribution.causes.base import KV_STAGES, SHAPE, Cause, Dose, Floats, positive
from kvdiag.attribution.frame import Frame
from kvdiag.attribution.rates import NodeRate
from kvdiag.derive.stages import WITHOUT_QUEUE
from kvdiag.model.finding import Evidence
from kvdiag.model.missing import Missing

RESOURCES = {"host.cpu_stalled_us": "processors", "host.memory_stalled_us": "memory", "host.io_stalled_us": "disks"}
LEAST_RISE = {"host.cpu_stalled_us": 0.10, "host.memory_stalled_us": 0.02, "host.io_stalled_us": 0.10}
"""Share of the time in which some task waited: what an idle machine's few daemons make is below a tenth; of memory, a
fiftieth is thrashing."""
STANDING_RISE = 0.25
"""Without a baseline, a quarter of the time: busy and healthy hosts stay below."""
BEYOND_CHANCE = 3.0
"""Standard errors of a correlation."""
FACTOR = 1.5
MOST_SHARE = 0.98
MOST_COEFFICIENT = 20.0
"""A stage takes 1 / (1 - p) times as long where a task is kept waiting a share p of the time; times twenty, for one of
a stage's many steps on a queue of other tasks."""


def dose(frame: Frame) -> Dose | Missing:
    """Return p / (1 - p) around each request, p the share of time stalled beyond the usual at the worse of its nodes.

    Once as it is and once in proportion to the tokens. It explains only what nothing else does: whatever costs
    processor time raises it too.
    """
    stalled = np.zeros(frame.rows)
    moved: list[tuple[str, NodeRate]] = []
    seen = False
    for metric in RESOURCES:
        for role in ("prefill", "decode"):
            now = frame.around(metric, role)
            if now is None:
                continue
            seen = True
            stalled = np.maximum(stalled, positive(now - frame.reference(metric, role)) / 1e6)
        least = STANDING_RISE if frame.standing else LEAST_RISE[metric]
        moved += [
            (metric, rate)
            for rate in frame.rates(metric).values()
            if rate.incident > FACTOR * rate.base and rate.incident - rate.base > least * 1e6
        ]
    if not seen:
        return Missing("host.cpu_stalled_us (/proc/pressure) was not recorded at the nodes of the requests")
    share = np.clip(stalled, 0.0, MOST_SHARE)
    slower = share / (1 - share)
    columns: tuple[Floats, ...] = (slower,)
    tokens = frame.number("uncached_tokens")
    tokens = frame.number("prompt_tokens") if tokens is None else tokens
    if tokens is not None:
        columns += (slower * tokens / max(float(tokens.mean()), 1.0),)
    usual = float(frame.stages.ttft_s.mean())
    return Dose(
        columns=columns,
        ceilings=(MOST_COEFFICIENT * usual,) * len(columns),
        moved=bool(moved) and (not frame.standing or _slow_when_stalled(frame, slower)),
        evidence=tuple(
            _line(metric, rate, standing=frame.standing)
            for metric, rate in sorted(moved, key=_by_rise, reverse=True)[:3]
        ),
        strength=SHAPE,
        last=True,
    )


def _slow_when_stalled(frame: Frame, slower: Floats) -> bool:
    """Whether requests take longer (queues left aside, by logarithms) when tasks are kept waiting, beyond chance.

    Without a baseline nothing else tells whether a host that is always busy costs them anything.
    """
    seconds = np.log(np.maximum(frame.stages.series(WITHOUT_QUEUE), 1e-9))
    if min(float(slower.std()), float(seconds.std())) <= 0:
        return False
    return float(np.corrcoef(slower, seconds)[0, 1]) > BEYOND_CHANCE / float(np.sqrt(frame.rows))


def _by_rise(one: tuple[str, NodeRate]) -> float:
    return one[1].incident - one[1].base


def _line(metric: str, rate: NodeRate, *, standing: bool) -> Evidence:
    return Evidence(
        name=f"{metric} @ {rate.node}",
        value=f"tasks waited for the host's {RESOURCES[metric]} {rate.base / 1e6:.0%} → {rate.incident / 1e6:.0%} of "
        "the time",
        source=f"counters, {metric}: mean, usual → in question",
        threshold=f"> {FACTOR:g}× and + {STANDING_RISE if standing else LEAST_RISE[metric]:.0%}",
    )


CAUSE = Cause(
    id="schedule.host_contention",
    stages=("prefill_s", *KV_STAGES, "first_step_s"),
    dose=dose,
    action="find what else runs on the hosts named (top, /proc/pressure, the neighbours' control groups), give the "
    "engine's processes cores of their own or a larger CPU limit, and keep its memory resident",
)
