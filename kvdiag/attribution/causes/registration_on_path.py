"""registration.on_path: memory is registered while a request waits for it."""

import numpy as np

from kvdiag.attribution.causes.base import Cause, Dose, by_elimination, counter_dose
from kvdiag.attribution.causes.registration_cache_miss import by_bytes, misses_explain
from kvdiag.attribution.frame import Frame
from kvdiag.model.missing import Missing

PAD_S = 5.0
"""Registrations are rare events: their rate per request is averaged over five seconds either side."""


def dose(frame: Frame) -> Dose | Missing:
    """Return registration seconds per request beyond the baseline (or registrations, where only they are counted).

    Once as they are and once in proportion to the request's bytes, which is what its buffers take to register.
    Nothing where a registration cache missed as often: then registration.cache_miss names it more exactly.
    """
    time = counter_dose(
        frame,
        "reg.mr_register_us",
        ("decode", "prefill"),
        per_pull=True,
        factor=1.5,
        least=500,
        unit="us/s per request/s",
        pad_s=PAD_S,
    )
    count = counter_dose(
        frame,
        "reg.mr_registered",
        ("decode", "prefill"),
        per_pull=True,
        factor=1.5,
        least=0.05,
        unit="1/s per request/s",
        pad_s=PAD_S,
    )
    size = counter_dose(
        frame,
        "nixl.registered_bytes",
        ("decode", "prefill"),
        per_pull=True,
        factor=1.5,
        least=65536,
        unit="B/s per request/s",
        pad_s=PAD_S,
    )
    seen = [one for one in (time, count, size) if isinstance(one, Dose)]
    if not seen:
        return by_elimination(
            frame, "register_s", "registration", "reg.mr_register_us, reg.mr_registered or nixl.registered_bytes"
        )
    found = next((one for one in seen if one.moved), seen[0])
    extra = tuple(line for one in seen if one is not found and one.moved for line in one.evidence[:1])
    columns = (*found.columns, *by_bytes(frame, found.columns))
    return Dose(
        columns=columns,
        ceilings=(np.inf,) * len(columns),
        moved=found.moved and not misses_explain(frame),
        evidence=found.evidence + extra,
    )


CAUSE = Cause(
    id="registration.on_path",
    stages=("register_s",),
    owns=("register_s",),
    side="decode",
    dose=dose,
    action="register KV buffers once at start-up and keep them registered; look for per-request register/deregister "
    "calls in the connector, and for a memory pool that grows while serving",
)
