"""schedule.decode_admission: the decode node has no room for the KV cache and lets requests wait."""

from dataclasses import replace

from kvdiag.attribution.causes.base import Cause, Dose, by_elimination, counter_dose
from kvdiag.attribution.frame import Frame
from kvdiag.attribution.holding import longer_transfers
from kvdiag.model.missing import Missing


def dose(frame: Frame) -> Dose | Missing:
    """Return the depth of the decode node's admission queue beyond the baseline.

    Where transfers take much longer, what slows them explains first: it is why the space is not there.
    """
    found = counter_dose(
        frame,
        "engine.admit_queue_depth",
        ("decode",),
        per_pull=False,
        factor=1.5,
        least=0.02,
        unit="requests waiting",
    )
    if isinstance(found, Dose):
        held = longer_transfers(frame)
        return replace(found, last=bool(held), evidence=(*found.evidence, *held[:2]))
    return by_elimination(frame, "admit_s", "waiting for KV space", "engine.admit_queue_depth")


CAUSE = Cause(
    id="schedule.decode_admission",
    stages=("admit_s",),
    owns=("admit_s",),
    side="decode",
    symptom=True,
    dose=dose,
    action="give decode nodes more KV space (more nodes, shorter contexts, faster eviction) or route around full ones",
)
