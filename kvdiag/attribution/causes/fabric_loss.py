"""fabric.loss: packets are lost and sent again."""

import numpy as np

from kvdiag.attribution.causes.base import Cause, Dose, by_wire_time, positive, rate_evidence
from kvdiag.attribution.frame import Floats, Frame
from kvdiag.attribution.rates import NodeRate
from kvdiag.model.finding import Evidence
from kvdiag.model.missing import Missing

METRICS = ("nic.out_of_sequence", "nic.retransmits", "nic.ack_timeouts")
FACTOR, LEAST = 5.0, 1.0
"""Events per second: healthy links show hundredths of one; below one per second no stage can be seen to slow down."""
RECOVERY_S = 0.25
"""One lost packet costs at most about a retransmission timeout (Linux TCP: 200 ms at least; RoCE timeouts are near)."""


def dose(frame: Frame) -> Dose | Missing:
    """Return baseline transfer seconds times the logarithm of lost-packet events around the transfer, at either end."""
    size = frame.number("bytes")
    if size is None:
        return Missing("requests have no bytes column")
    events = np.zeros(frame.rows)
    moved: list[tuple[str, NodeRate]] = []
    seen = False
    grown = 1.0 if frame.standing else _traffic_growth(frame, size)
    for metric in METRICS:
        for role in ("prefill", "decode"):
            now = frame.around(metric, role)
            if now is None:
                continue
            seen = True
            events = np.maximum(events, positive(now - FACTOR * frame.reference(metric, role, "base_high")))
        moved += [
            (metric, rate)
            for rate in frame.rates(metric).values()
            if rate.incident > FACTOR * grown * rate.base and rate.incident - grown * rate.base > LEAST
        ]
    if not seen:
        return Missing(f"none of {', '.join(METRICS)} was recorded at the nodes of the requests")
    lines: tuple[Evidence, ...] = ()
    for metric in METRICS:
        rates = [rate for name, rate in moved if name == metric]
        lines += rate_evidence(metric, rates, "1/s", f"> {FACTOR:g}× and + {LEAST:g} 1/s", most=2)
    columns = by_wire_time(frame, size, np.log1p(events / LEAST))
    requests = float(frame.incident.sum()) / frame.sampling / frame.period_s(incident=True)
    # Packets that arrive out of order and make nobody send again cost nothing.
    harmless = "nic.out_of_sequence" if frame.rates("nic.retransmits") else ""
    costly = sum(max(rate.incident - rate.base, 0.0) for metric, rate in moved if metric != harmless)
    most = RECOVERY_S * costly / max(requests, 1e-9)
    return Dose(
        columns=columns,
        ceilings=tuple(most / max(float(column[frame.incident].mean()), 1e-12) for column in columns),
        moved=bool(moved),
        evidence=lines,
    )


def _traffic_growth(frame: Frame, size: Floats) -> float:
    """Return by which factor the bytes per second grew, at least 1: more traffic loses more at the same quality."""
    offered = [
        float(size[rows].sum()) / max(frame.period_s(incident=incident), 1e-9)
        for rows, incident in ((~frame.incident, False), (frame.incident, True))
    ]
    return max(1.0, offered[1] / offered[0]) if offered[0] > 0 else 1.0


CAUSE = Cause(
    id="fabric.loss",
    stages=("wire_s",),
    dose=dose,
    action="find where packets are dropped: symbol and FEC errors at the nodes named, switch port discards, PFC or "
    "buffer settings of a lossless class; replace the cable or optic where symbol errors rise with it",
)
