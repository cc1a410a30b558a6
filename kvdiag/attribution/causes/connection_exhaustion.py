"""connection.exhaustion: transfer handles or queue pairs run out, and requests wait for one."""

from kvdiag.attribution.causes.base import Cause, Dose, by_elimination, counter_dose
from kvdiag.attribution.frame import Frame
from kvdiag.model.missing import Missing


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
    )
    if isinstance(found, Dose):
        return found
    return by_elimination(frame, "handle_s", "waiting for handles", "conn.handle_alloc_failures")


CAUSE = Cause(
    id="connection.exhaustion",
    stages=("handle_s",),
    owns=("handle_s",),
    side="decode",
    dose=dose,
    action="raise the limit of transfer handles or queue pairs, or release them sooner; a number in use that only "
    "grows is a leak",
)
