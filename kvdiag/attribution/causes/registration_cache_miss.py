"""registration.cache_miss: a registration cache stopped hitting, so that buffers are registered again and again."""

import numpy as np

from kvdiag.attribution.causes.base import Cause, Dose, Floats, counter_dose
from kvdiag.attribution.frame import Frame
from kvdiag.model.missing import Missing

PAD_S = 5.0
LEAST_SHARE = 0.1
"""Misses must be a tenth of the additional registrations to have caused them: one miss registers several regions."""


def dose(frame: Frame) -> Dose | Missing:
    """Return registration cache misses per request beyond the baseline."""
    return counter_dose(
        frame,
        "reg.cache_misses",
        ("decode", "prefill"),
        per_pull=True,
        factor=2,
        least=0.01,
        unit="1/s per request/s",
        pad_s=PAD_S,
    )


def by_bytes(frame: Frame, columns: tuple[Floats, ...]) -> tuple[Floats, ...]:
    """Return the columns in proportion to each request's bytes: larger buffers take longer to register."""
    size = frame.number("bytes")
    return () if size is None else tuple(column * size / max(float(size.mean()), 1.0) for column in columns)


def misses_explain(frame: Frame) -> bool:
    """Whether cache misses rose along with registrations, so that they are the reason."""
    found = dose(frame)
    if isinstance(found, Missing) or not found.moved:
        return False
    misses = sum(rate.incident - rate.base for rate in frame.rates("reg.cache_misses").values())
    registered = sum(rate.incident - rate.base for rate in frame.rates("reg.mr_registered").values())
    return misses > LEAST_SHARE * max(registered, 0.0)


def _dose(frame: Frame) -> Dose | Missing:
    found = dose(frame)
    if isinstance(found, Missing):
        return found
    columns = (*found.columns, *by_bytes(frame, found.columns))
    return Dose(
        columns=columns, ceilings=(np.inf,) * len(columns), moved=misses_explain(frame), evidence=found.evidence
    )


CAUSE = Cause(
    id="registration.cache_miss",
    stages=("register_s",),
    side="decode",
    dose=_dose,
    action="raise the registration cache's limits, or pin the KV pool so that addresses repeat; look for buffers that "
    "are freed and allocated anew between requests",
)
