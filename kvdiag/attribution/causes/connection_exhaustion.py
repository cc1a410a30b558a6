"""connection.exhaustion: transfer handles or queue pairs run out, and requests wait for one."""

from kvdiag.attribution.causes.base import ELIMINATION, Cause, Dose, counter_dose
from kvdiag.attribution.frame import Frame
from kvdiag.model.finding import Evidence
from kvdiag.model.missing import Missing

PAD_S = 2.0


def dose(frame: Frame) -> Dose | Missing:
    """Return failed handle allocations per request beyond the baseline."""
    found = counter_dose(
        frame,
        "conn.handle_alloc_failures",
        ("decode", "prefill"),
        per_pull=True,
        factor=3,
        least=0.02,
        unit="1/s per request/s",
        pad_s=PAD_S,
    )
    stage = frame.stages.stage("handle_s")
    if isinstance(found, Dose) or stage is None:
        return found
    evidence = Evidence(
        name="handle_s, the only stage exhaustion can be in",
        value=f"{stage[~frame.incident].mean() * 1e3:.3g} → {stage[frame.incident].mean() * 1e3:.3g} ms (means)",
        source="requests, handle_s; no allocation failure counter was recorded",
    )
    return Dose(columns=(), ceilings=(), moved=True, evidence=(evidence,), strength=ELIMINATION)


CAUSE = Cause(
    id="connection.exhaustion",
    stages=("handle_s",),
    owns=("handle_s",),
    side="decode",
    dose=dose,
    action="raise the limit of transfer handles or queue pairs, or release them sooner; a number in use that only "
    "grows is a leak",
)
