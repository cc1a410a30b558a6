"""registration.on_path: memory is registered while a request waits for it."""

from kvdiag.attribution.causes.base import ELIMINATION, Cause, Dose, counter_dose
from kvdiag.attribution.causes.registration_cache_miss import misses_explain
from kvdiag.attribution.frame import Frame
from kvdiag.model.finding import Evidence
from kvdiag.model.missing import Missing

PAD_S = 5.0
"""Registrations are rare events: their rate per request is averaged over five seconds either side."""


def dose(frame: Frame) -> Dose | Missing:
    """Return registration seconds per request beyond the baseline (or registrations, where only they are counted).

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
    found = count if isinstance(time, Missing) else time
    if isinstance(found, Missing):
        stage = frame.stages.stage("register_s")
        if stage is None:
            return Missing("neither reg.mr_register_us nor reg.mr_registered nor a register_s stage was recorded")
        evidence = Evidence(
            name="register_s, the only stage registration can be in",
            value=f"{stage[~frame.incident].mean() * 1e3:.3g} → {stage[frame.incident].mean() * 1e3:.3g} ms (means)",
            source="requests, register_s; no registration counter was recorded",
        )
        return Dose(columns=(), ceilings=(), moved=True, evidence=(evidence,), strength=ELIMINATION)
    extra = () if isinstance(time, Missing) or isinstance(count, Missing) else count.evidence[:2]
    return Dose(
        columns=found.columns,
        ceilings=found.ceilings,
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
