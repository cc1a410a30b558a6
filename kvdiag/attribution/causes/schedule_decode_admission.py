"""schedule.decode_admission: the decode node has no room for the KV cache and lets requests wait."""

from kvdiag.attribution.causes.base import ELIMINATION, Cause, Dose, counter_dose
from kvdiag.attribution.frame import Frame
from kvdiag.model.finding import Evidence
from kvdiag.model.missing import Missing

PAD_S = 2.0


def dose(frame: Frame) -> Dose | Missing:
    """Return the depth of the decode node's admission queue beyond the baseline."""
    found = counter_dose(
        frame,
        "engine.admit_queue_depth",
        ("decode",),
        per_pull=False,
        factor=1.5,
        least=0.02,
        unit="requests waiting",
        pad_s=PAD_S,
    )
    stage = frame.stages.stage("admit_s")
    if isinstance(found, Dose) or stage is None:
        return found
    evidence = Evidence(
        name="admit_s, the only stage admission can be in",
        value=f"{stage[~frame.incident].mean() * 1e3:.3g} → {stage[frame.incident].mean() * 1e3:.3g} ms (means)",
        source="requests, admit_s; no admission queue depth was recorded",
    )
    return Dose(columns=(), ceilings=(), moved=True, evidence=(evidence,), strength=ELIMINATION)


CAUSE = Cause(
    id="schedule.decode_admission",
    stages=("admit_s",),
    owns=("admit_s",),
    side="decode",
    dose=dose,
    action="give decode nodes more KV space (more nodes, shorter contexts, faster eviction) or route around full ones",
)
