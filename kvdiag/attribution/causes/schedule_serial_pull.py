"""schedule.serial_pull: transfers wait for each other although the link could carry several."""

from dataclasses import replace

import numpy as np

from kvdiag.attribution.causes.base import Cause, Dose, counter_dose
from kvdiag.attribution.frame import Frame
from kvdiag.attribution.holding import longer_transfers
from kvdiag.model.finding import Evidence
from kvdiag.model.missing import Missing

FEW_IN_FLIGHT = 1.6
"""A queue behind at most about one running transfer is serialisation; behind many it is fan-in."""


def dose(frame: Frame) -> Dose | Missing:
    """Return the depth of the decode node's transfer queue beyond the baseline, where hardly any transfer ran.

    Where transfers take much longer, what slows them explains first.
    """
    found = _queued(frame)
    held = longer_transfers(frame) if isinstance(found, Dose) else ()
    return (
        replace(found, last=True, evidence=(*found.evidence, *held[:2])) if isinstance(found, Dose) and held else found
    )


def _queued(frame: Frame) -> Dose | Missing:
    found = counter_dose(
        frame,
        "engine.pull_queue_depth",
        ("decode",),
        per_pull=False,
        factor=1.5,
        least=0.05,
        unit="transfers waiting",
    )
    if isinstance(found, Missing):
        return found
    running = frame.around("engine.pulls_in_flight", "decode")
    if running is None:
        return found
    queued = frame.incident & (found.columns[0] > 0) & np.isfinite(running)
    if not queued.any():
        return Dose(columns=found.columns, ceilings=found.ceilings, moved=False, evidence=found.evidence)
    beside = float(np.average(running[queued], weights=found.columns[0][queued]))
    serial = beside <= FEW_IN_FLIGHT
    line = Evidence(
        name="transfers running while others waited",
        value=f"{beside:.2f}",
        source="counters, engine.pulls_in_flight around each waiting request",
        threshold=f"<= {FEW_IN_FLIGHT:g}",
    )
    return Dose(
        columns=(found.columns[0] if serial else np.zeros(frame.rows),),
        ceilings=found.ceilings,
        moved=found.moved and serial,
        evidence=(*found.evidence, line),
    )


CAUSE = Cause(
    id="schedule.serial_pull",
    stages=("pull_wait_s",),
    owns=("pull_wait_s",),
    side="decode",
    dose=dose,
    action="let the connector run several transfers at once (worker threads, asynchronous reads) on the decode node",
)
