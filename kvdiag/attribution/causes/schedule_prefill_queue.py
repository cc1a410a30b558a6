"""schedule.prefill_queue: more requests arrive than prefill serves without queueing."""

import numpy as np

from kvdiag.attribution.causes.base import Cause, Driver, Load
from kvdiag.attribution.frame import Frame
from kvdiag.attribution.workload import expected_co_batch
from kvdiag.model.finding import Evidence
from kvdiag.model.missing import Missing


def drivers(frame: Frame) -> tuple[Driver, ...] | Missing:
    """Return the co-batched tokens that go with the load: a fuller queue fills prefill batches."""
    expected = expected_co_batch(frame)
    if expected is None:
        return Missing("requests have no batch_tokens beside uncached_tokens")
    return (Driver(column=expected, stages=("prefill_s",)),)


def load(frame: Frame) -> Load | Missing:
    """Return the ratio of arrival rates: the engines' unsampled counter where recorded, else the rows."""
    rates = list(frame.rates("engine.arrivals").values())
    count_after = int(frame.incident.sum())
    count_before = frame.rows - count_after
    if rates and sum(rate.base for rate in rates) > 0:
        after = sum(rate.incident for rate in rates) * (frame.end_s - frame.split_s)
        before = sum(rate.base for rate in rates) * (frame.split_s - frame.start_s)
    else:
        after, before = float(count_after), float(count_before)
    ratio = (
        after / max(frame.end_s - frame.split_s, 1e-9) / max(before / max(frame.split_s - frame.start_s, 1e-9), 1e-9)
    )
    return Load(ratio=ratio, error=float(np.sqrt(1 / max(after, 1) + 1 / max(before, 1))))


def evidence(frame: Frame) -> tuple[Evidence, ...]:
    """Return the arrival rates before and after."""
    found = load(frame)
    if isinstance(found, Missing):
        return ()
    source = "counters, engine.arrivals" if frame.rates("engine.arrivals") else "requests, arrival_s"
    value = f"{found.ratio:.3f}× the baseline's (standard error {found.error:.3f})"
    return (Evidence(name="arrival rate", value=value, source=source),)


CAUSE = Cause(
    id="schedule.prefill_queue",
    stages=("queue_s",),
    side="prefill",
    workload=True,
    drivers=drivers,
    load=load,
    evidence=evidence,
    action="add prefill capacity or shed load; balance arrivals over the prefill nodes",
)
