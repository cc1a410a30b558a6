"""Without a baseline, whether prefill batches are larger than the requests that wait for the worker make them.

A worker that takes what waits serves, per batch, what arrived during the one before, and one where nothing did: with
Poisson arrivals at rate l and a batch lasting S on the mean, l S + exp(-l S) requests. Larger batches were waited for.
"""

from dataclasses import dataclass

import numpy as np

from kvdiag.attribution.causes.base import Load
from kvdiag.attribution.frame import Floats, Frame
from kvdiag.attribution.workload import co_batch
from kvdiag.model.missing import Missing

LEAST_RATIO = 1.15
"""Arrivals come in waves, not quite at random: batches of healthy simulated clusters reach 1.12 times that size."""
ERRORS = 3.0
LEAST_ROWS = 60


@dataclass(frozen=True, slots=True, eq=False)
class Batching:
    """Requests in a batch as seen and as waiting makes them; `extra` tokens of others that each request was beside."""

    seen: float
    usual: float
    error: float
    extra: Floats

    @property
    def lingers(self) -> bool:
        """Whether batches are larger than waiting makes them, beyond chance."""
        return self.seen > (LEAST_RATIO + ERRORS * self.error) * self.usual

    @property
    def load(self) -> Load:
        """By which factor larger batches lengthen what a request waits for."""
        return Load(ratio=max(self.seen / self.usual, 1.0), error=self.error)


def batching(frame: Frame) -> Batching | Missing:
    """Return how large batches are; Missing where they or the prefill's seconds are not recorded."""
    known = frame.memo.get("batching")
    if known is None:
        known = frame.memo["batching"] = _batching(frame)
    assert isinstance(known, Batching | Missing)
    return known


def _batching(frame: Frame) -> Batching | Missing:
    beside, count, prefill = co_batch(frame), frame.number("batch_requests"), frame.stages.stage("prefill_s")
    if beside is None or count is None or prefill is None or frame.windowed or frame.rows < LEAST_ROWS:
        return Missing("requests have no batch_requests beside batch_tokens, uncached_tokens and prefill_s")
    labels = frame.nodes("prefill")
    rates = frame.rates("engine.arrivals")
    # Each batch is seen once per request in it: weighted by 1 / requests, it counts once.
    share = 1 / np.maximum(count, 1.0)
    seen = usual = batches = 0.0
    for code in np.unique(labels.codes):
        here = labels.codes == code
        own = float(share[here].sum())
        lasting = float((prefill[here] * share[here]).sum()) / own
        node = labels.names[code] if code >= 0 else ""
        counted = rates[node].incident if node in rates else np.nan
        arrivals = counted if np.isfinite(counted) else here.sum() / frame.sampling / frame.period_s(incident=True)
        waiting = float(arrivals) * lasting
        seen += float(here.sum())
        usual += own * (waiting + float(np.exp(-waiting)))
        batches += own
    size, expected = seen / batches, usual / batches
    error = float(share.std() / share.mean() / np.sqrt(frame.rows))
    part = np.clip((size - expected) / max(size - 1, 1e-9), 0.0, 1.0)
    return Batching(seen=size, usual=expected, error=error, extra=beside * part)
