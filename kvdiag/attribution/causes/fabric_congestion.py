"""fabric.congestion: switches mark or pause the traffic that shares the path."""

import numpy as np

from kvdiag.attribution.causes.base import Cause, Dose, Floats, positive, rate_evidence
from kvdiag.attribution.causes.fabric_link_degraded import reported_slowness
from kvdiag.attribution.causes.fabric_tcp_fallback import tcp_share
from kvdiag.attribution.frame import Frame
from kvdiag.attribution.rates import NodeRate
from kvdiag.model.finding import Evidence
from kvdiag.model.missing import Missing

MARKS = ("nic.cnp", "nic.ecn_marked")
MARK_FACTOR, MARK_LEAST = 3.0, 50.0
"""Marks follow a node's own load; three times the baseline's rate, and 50 a second, is beyond it."""
PAUSE_LEAST = 0.01
"""One hundredth of the time paused costs at most one hundredth of the wire time."""
MOST_PAUSE_COEFFICIENT = 5.0
"""Paused a share p of the time, a transfer takes 1/(1-p) times as long; times five for queueing behind it."""
MOST_MARK_COEFFICIENT = 20.0


def dose(frame: Frame) -> Dose | Missing:
    """Return baseline transfer seconds times p/(1-p), p the share of time paused, and times log(marks / baseline)."""
    size = frame.number("bytes")
    if size is None:
        return Missing("requests have no bytes column")
    seconds = size * frame.seconds_per_byte()
    paused, marked = np.zeros(frame.rows), np.zeros(frame.rows)
    seen = False
    for role in ("prefill", "decode"):
        pause = frame.around("nic.pause_us", role)
        if pause is not None:
            seen = True
            share = np.clip(positive(pause - frame.reference("nic.pause_us", role)) / 1e6, 0, 0.95)
            paused = np.maximum(paused, share / (1 - share))
        for metric in MARKS:
            now = frame.around(metric, role)
            if now is None:
                continue
            seen = True
            usual = np.maximum(frame.reference(metric, role, "base_high"), MARK_LEAST)
            with np.errstate(invalid="ignore", divide="ignore"):
                marked = np.maximum(marked, positive(_log_over(now, usual)))
    # What came over TCP was slowed by no marks of RDMA traffic.
    tcp = tcp_share(frame)
    if tcp is not None:
        marked = marked * (1 - tcp)
    # A link that runs slower is filled by its own traffic: its marks and pauses are the slow link's.
    slower, _ = reported_slowness(frame)
    marked, paused = marked / (1 + slower), paused / (1 + slower)
    if not seen:
        return Missing("none of nic.cnp, nic.ecn_marked, nic.pause_us was recorded at the nodes of the requests")
    moved = {
        metric: [
            rate
            for rate in frame.rates(metric).values()
            if rate.incident > MARK_FACTOR * rate.base and rate.incident - rate.base > least
        ]
        for metric, least in (*((mark, MARK_LEAST) for mark in MARKS), ("nic.pause_us", PAUSE_LEAST * 1e6))
    }
    return Dose(
        columns=(seconds * paused, seconds * marked),
        ceilings=(MOST_PAUSE_COEFFICIENT, MOST_MARK_COEFFICIENT),
        moved=any(moved.values()),
        evidence=_evidence(moved),
    )


def _log_over(now: Floats, usual: Floats) -> Floats:
    """Return the logarithm of the rate over the usual one, zero below it."""
    result: Floats = np.log(np.maximum(now, usual) / usual)
    return result


def _evidence(moved: dict[str, list[NodeRate]]) -> tuple[Evidence, ...]:
    lines: tuple[Evidence, ...] = ()
    for metric, rates in moved.items():
        paused = metric == "nic.pause_us"
        rule = f"+ {PAUSE_LEAST * 1e6:g} us/s" if paused else f"> {MARK_FACTOR:g}× and + {MARK_LEAST:g} 1/s"
        lines += rate_evidence(metric, rates, "us/s" if paused else "1/s", rule, most=2)
    return lines


CAUSE = Cause(
    id="fabric.congestion",
    stages=("pull_wait_s", "wire_s"),
    dose=dose,
    action="find the traffic that shares the links of the nodes named (other jobs, checkpoints), and check ECN/PFC "
    "thresholds and the traffic class of KV transfers on both ends",
)
