"""fabric.incast: many senders to one receiver at once, more bytes than before."""

import numpy as np

from kvdiag.attribution.causes.base import Cause, Dose, positive, rate_evidence
from kvdiag.attribution.frame import Floats, Frame
from kvdiag.model.finding import Evidence
from kvdiag.model.missing import Missing

LEAST_RISE = 1.25
"""Fan-in needs more bytes at the receiver than in the baseline; otherwise transfers in flight are only a symptom."""
LEAST_SKEW = 1.1
"""... and more than its peers do: if all of them receive more, load grew."""
LEAST_SHARE = 1.5
"""Without a baseline: times the mean of the decode nodes' received bytes."""
MOST_COEFFICIENT = 20.0


def dose(frame: Frame) -> Dose | Missing:
    """Return baseline transfer seconds times the transfers in flight beyond the baseline, where offered bytes rose."""
    size = frame.number("bytes")
    running = frame.around("engine.pulls_in_flight", "decode")
    if size is None or running is None:
        return Missing("engine.pulls_in_flight at the decode nodes or the bytes column was not recorded")
    labels = frame.nodes("decode")
    received = frame.rates("nic.rx_bytes")
    if frame.standing:
        return _above_peers(frame, size, running)
    rises = []
    for code, node in enumerate(labels.names):
        here = labels.codes == code
        if node in received:
            rate = received[node]
            rises.append(rate.incident / max(rate.base, 1.0))
        else:
            before, after = size[here & ~frame.incident].sum(), size[here & frame.incident].sum()
            spans = (frame.period_s(incident=False), frame.period_s(incident=True))
            rises.append(float(after / spans[1]) / max(float(before / spans[0]), 1.0))
    whole = float(np.mean(rises)) if rises else 1.0
    gathers = [rise > LEAST_RISE and rise > LEAST_SKEW * whole for rise in rises]
    if len(rises) == 1:
        gathers = [rises[0] > LEAST_RISE]
    if _one_sender(frame):
        gathers = [False] * len(rises)
    rose = np.array([*gathers, False])[labels.codes]
    extra = positive(running - frame.reference("engine.pulls_in_flight", "decode"))
    nodes = [node for node, more in zip(labels.names, gathers, strict=True) if more]
    return Dose(
        columns=(size * frame.seconds_per_byte() * np.where(rose & frame.incident, extra, 0.0),),
        ceilings=(MOST_COEFFICIENT,),
        moved=bool(nodes),
        evidence=rate_evidence(
            "nic.rx_bytes", [received[node] for node in nodes if node in received], "B/s", f"> {LEAST_RISE:g}×"
        ),
    )


def _one_sender(frame: Frame) -> bool:
    """Whether all caches came from one prefill node: what one link brings is no fan-in."""
    return len(frame.node_names("prefill")) == 1


def _above_peers(frame: Frame, size: Floats, running: Floats) -> Dose | Missing:
    """Return transfer seconds times transfers in flight beyond the quiet peers', where more bytes go than to peers."""
    labels = frame.nodes("decode")
    offered = np.bincount(labels.codes + 1, weights=size, minlength=len(labels.names) + 1)[1:]
    share = offered / max(float(offered.mean()), 1.0) if offered.size and not _one_sender(frame) else 0.0 * offered
    rose = np.array([*(share > LEAST_SHARE), False])[labels.codes]
    extra = positive(running - frame.reference("engine.pulls_in_flight", "decode", "base_high"))
    lines = tuple(
        Evidence(
            name=f"bytes to {node} against the mean of the decode nodes",
            value=f"{one:.2f}×",
            source="requests, bytes",
            threshold=f"> {LEAST_SHARE:g}×",
        )
        for node, one in zip(labels.names, share.tolist(), strict=True)
        if one > LEAST_SHARE
    )
    return Dose(
        columns=(size * frame.seconds_per_byte() * np.where(rose, extra, 0.0),),
        ceilings=(MOST_COEFFICIENT,),
        moved=bool(lines),
        evidence=lines,
    )


CAUSE = Cause(
    id="fabric.incast",
    stages=("wire_s", "pull_wait_s"),
    side="decode",
    dose=dose,
    action="spread requests over the decode nodes again (routing, sticky sessions), or limit transfers in flight "
    "per node",
)
