"""workload.prefill_batch: requests share larger prefill batches than the load alone explains."""

import numpy as np

from kvdiag.attribution.batching import LEAST_RATIO, batching
from kvdiag.attribution.causes.base import Cause, Dose, Driver
from kvdiag.attribution.frame import Frame
from kvdiag.attribution.workload import co_batch, expected_co_batch
from kvdiag.model.finding import Evidence
from kvdiag.model.missing import Missing


def drivers(frame: Frame) -> tuple[Driver, ...] | Missing:
    """Return co-batched tokens beyond what the baseline shows at the same prefill load."""
    extra, expected = co_batch(frame), expected_co_batch(frame)
    if extra is None or expected is None:
        return Missing("requests have no batch_tokens beside uncached_tokens")
    return (Driver(column=extra - expected, stages=("prefill_s",)),)


def evidence(frame: Frame) -> tuple[Evidence, ...]:
    """Return co-batched tokens before and after, and what the load explains."""
    extra, expected = co_batch(frame), expected_co_batch(frame)
    if extra is None or expected is None:
        return ()
    before, after = extra[~frame.incident], extra[frame.incident]
    means = f"mean {np.mean(before):,.0f} → {np.mean(after):,.0f} tokens"
    value = f"{means}; the load explains {np.mean(expected[frame.incident]):,.0f}"
    return (Evidence(name="tokens of other requests in the batch", value=value, source="requests, batch_tokens"),)


def standing(frame: Frame) -> Dose | Missing:
    """Return the tokens of others in batches that were waited for; no baseline tells what else is usual."""
    found = batching(frame)
    if isinstance(found, Missing):
        return found
    line = Evidence(
        name="requests in a prefill batch",
        value=f"{found.seen:.2f}, where those that arrive during the batch before make {found.usual:.2f}",
        source="requests, batch_requests, prefill_s, and the rate of arrivals",
        threshold=f"> {LEAST_RATIO:g}×",
    )
    return Dose(columns=(found.extra,), ceilings=(np.inf,), moved=found.lingers, evidence=(line,), own=True)


CAUSE = Cause(
    id="workload.prefill_batch",
    side="prefill",
    workload=True,
    drivers=drivers,
    evidence=evidence,
    standing=standing,
    standing_stages=("prefill_s",),
    action="limit the tokens of a prefill batch, or use chunked prefill, if first tokens matter more than throughput",
)
