"""fabric.loss: packets are lost and sent again."""

import numpy as np

from kvdiag.attribution.causes.base import Cause, Dose, by_wire_time, positive, rate_evidence
from kvdiag.attribution.frame import Floats, Frame
from kvdiag.attribution.rates import NodeRate
from kvdiag.model.finding import Evidence
from kvdiag.model.missing import Missing

METRICS = ("nic.out_of_sequence", "nic.retransmits", "nic.ack_timeouts")
FACTOR, LEAST = 5.0, 1.0
"""Events per second: healthy links show hundredths of one. At a NIC's port fewer count too, where requests are few or
quick: from LEAST_COST of mean TTFT on, at RECOVERY_S each, and LEAST_EVENTS in all. A host's TCP sends again for a busy
peer as well."""
LEAST_COST, LEAST_EVENTS = 0.02, 10.0
RECOVERY_S = 0.25
"""One lost packet costs at most about a retransmission timeout (Linux TCP: 200 ms at least; RoCE timeouts are near)."""
STEADY_S = 5.0
"""Loss is a matter of chance: which of the transfers of some seconds lose a packet that costs a timeout is not in the
counters, how many do is in their mean over those seconds."""


def dose(frame: Frame) -> Dose | Missing:
    """Return baseline transfer seconds times the logarithm of lost-packet events around the transfer, at either end."""
    size = frame.number("bytes")
    if size is None:
        return Missing("requests have no bytes column")
    near, steady = np.zeros(frame.rows), np.zeros(frame.rows)
    moved: list[tuple[str, NodeRate]] = []
    seen = False
    grown = 1.0 if frame.standing else _traffic_growth(frame, size)
    requests = float(frame.incident.sum()) / frame.sampling / frame.period_s(incident=True)
    felt = _felt(frame, requests)
    for metric in METRICS:
        for role in ("prefill", "decode"):
            now = frame.around(metric, role)
            if now is None:
                continue
            seen = True
            usual = FACTOR * frame.reference(metric, role, "base_high")
            near = np.maximum(near, positive(now - usual))
            around = frame.around(metric, role, STEADY_S)
            steady = steady if around is None else np.maximum(steady, positive(around - usual))
        moved += [
            (metric, rate)
            for node, rate in frame.rates(metric).items()
            if rate.incident > FACTOR * grown * rate.base
            and rate.incident - grown * rate.base > (felt if frame.counted_devices(metric, node) else LEAST)
        ]
    if not seen:
        return Missing(f"none of {', '.join(METRICS)} was recorded at the nodes of the requests")
    lines: tuple[Evidence, ...] = ()
    for metric in METRICS:
        rates = [rate for name, rate in moved if name == metric]
        bar = felt if any(frame.counted_devices(metric, rate.node) for rate in rates) else LEAST
        lines += rate_evidence(metric, rates, "1/s", f"> {FACTOR:g}× and + {bar:.2g} 1/s", most=2)
    columns = tuple(
        column for events in (near, steady) for column in by_wire_time(frame, size, np.log1p(events / LEAST))
    )
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


def _felt(frame: Frame, requests: float) -> float:
    """Return from how many events per second on loss can be felt by so many requests per second, LEAST at most."""
    usual = float(frame.stages.ttft_s[slice(None) if frame.standing else ~frame.incident].mean())
    costly = LEAST_COST * usual * requests / RECOVERY_S
    return min(LEAST, max(costly, LEAST_EVENTS / frame.period_s(incident=True)))


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
