"""schedule.prefill_queue: more requests arrive than prefill serves without queueing."""

from kvdiag.attribution.causes.base import Cause, Driver, Load
from kvdiag.attribution.frame import Frame
from kvdiag.attribution.loads import factors
from kvdiag.attribution.workload import expected_co_batch
from kvdiag.model.finding import Evidence
from kvdiag.model.missing import Missing


def drivers(frame: Frame) -> tuple[Driver, ...] | Missing:
    """Return the co-batched tokens that go with the load: a fuller queue fills prefill batches."""
    expected = expected_co_batch(frame)
    if expected is None:
        return Missing("requests have no batch_tokens beside uncached_tokens")
    return (Driver(column=expected, stages=("prefill_s",), by_load=True),)


def load(frame: Frame) -> Load | Missing:
    """Return the ratio of arrival rates: rows and, where recorded, the engines' unsampled counters."""
    return factors(frame).arrivals


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
