"""connection.setup: connections are made while a request waits, instead of once."""

import numpy as np

from kvdiag.attribution.causes.base import Cause, Dose, Floats, by_elimination, counter_dose
from kvdiag.attribution.frame import Frame
from kvdiag.model.missing import Missing

PAD_S = 5.0


def dose(frame: Frame) -> Dose | Missing:
    """Return queue pairs created per request beyond the baseline, the lesser of both ends (one each)."""
    ends = [
        counter_dose(
            frame,
            "conn.qp_created",
            (role,),
            per_pull=True,
            factor=2,
            least=0.02,
            unit="1/s per request/s",
            pad_s=PAD_S,
        )
        for role in ("decode", "prefill")
    ]
    seen = [end for end in ends if isinstance(end, Dose)]
    if not seen:
        return by_elimination(frame, "setup_s", "connection set-up", "conn.qp_created")
    column: Floats = np.minimum.reduce([end.columns[0] for end in seen])
    return Dose(
        columns=(column,),
        ceilings=(np.inf,),
        moved=all(end.moved for end in seen),
        evidence=tuple(line for end in seen for line in end.evidence[:2]),
    )


CAUSE = Cause(
    id="connection.setup",
    stages=("setup_s",),
    owns=("setup_s",),
    dose=dose,
    action="connect prefill and decode nodes before serving (warm-up transfer) and keep connections; look for peers "
    "that restart or connections that are torn down when idle",
)
