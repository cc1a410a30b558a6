"""layout.fragmented: the same bytes in many more, smaller descriptors."""

import numpy as np

from kvdiag.attribution.causes.base import Cause, Dose
from kvdiag.attribution.frame import Frame
from kvdiag.model.finding import Evidence
from kvdiag.model.missing import Missing

FACTOR = 1.25
"""Descriptors per byte may vary by a quarter with prompt lengths (partly filled blocks) before it is fragmentation."""


def dose(frame: Frame) -> Dose | Missing:
    """Return descriptors beyond FACTOR times the baseline's number for the same bytes."""
    descriptors, size = frame.number("descriptors"), frame.number("bytes")
    if descriptors is None or size is None:
        return Missing(f"requests have no {'descriptors' if descriptors is None else 'bytes'} column")
    used = (size > 0) & (descriptors > 0)
    base, incident = used & ~frame.incident, used & frame.incident
    if not base.any() or not incident.any():
        return Missing("no transfer with bytes and descriptors in one of the periods")
    before = float(np.median(descriptors[base] / size[base]))
    after = float(np.median(descriptors[incident] / size[incident]))
    extra = np.maximum(descriptors - FACTOR * before * size, 0.0)
    touched = float((extra[incident] > 0).mean())
    return Dose(
        columns=(extra,),
        ceilings=(np.inf,),
        moved=after > FACTOR * before or touched > 0.1,
        evidence=(
            Evidence(
                name="bytes per descriptor (median)",
                value=f"{1 / before:,.0f} → {1 / after:,.0f} B",
                source="requests, bytes / descriptors",
                threshold=f"descriptors per byte > {FACTOR:g}× baseline",
            ),
            Evidence(
                name="descriptors per request (median)",
                value=f"{np.median(descriptors[base]):,.0f} → {np.median(descriptors[incident]):,.0f}",
                source="requests, descriptors",
            ),
        ),
    )


CAUSE = Cause(
    id="layout.fragmented",
    stages=("post_s", "wire_s"),
    dose=dose,
    action="make KV blocks contiguous: larger block size, one layout for K and V and for both sides, fewer layers per "
    "descriptor; compare the engines' block size and tensor-parallel layout before and after",
)
