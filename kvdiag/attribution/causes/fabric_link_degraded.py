"""fabric.link_degraded: a link runs slower than it did, or its way became longer, without loss or marks."""

import numpy as np

from kvdiag.attribution.causes.base import SEEN, SHAPE, UNCLEAR, Cause, Dose, Floats, by_wire_time, positive
from kvdiag.attribution.causes.fabric_loss import METRICS as LOSS
from kvdiag.attribution.causes.fabric_tcp_fallback import dose as tcp_dose
from kvdiag.attribution.causes.fabric_tcp_fallback import tcp_share
from kvdiag.attribution.causes.layout_fragmented import dose as layout_dose
from kvdiag.attribution.ceiling import goodput_ceilings, host_slowdown, standing_ceilings
from kvdiag.attribution.frame import MOST_SLOWNESS, Frame, Role
from kvdiag.attribution.latency import transfer_floors
from kvdiag.model.finding import Evidence
from kvdiag.model.missing import Missing

LEAST_DROP = 0.9
"""A reported link speed below 90 % of the baseline's is a drop; links come in steps of two or more."""
SHARP = 0.88
"""A rate limit holds every transfer to one speed (recorded: the median at 91 to 94 % of the best tenth) and explains
first; below that, loss or another way may look alike, and what counters show of them explains first."""
LEAST_SEEN = 0.7
"""A NIC that sees less than 70 % of its former share of the bytes was not their way any more."""
MOST_TCP = 0.25
"""Where more than a quarter of the bytes around a node's transfers came over TCP, its goodput is TCP's. A NIC that
counts Ethernet frames sees those bytes as well, so all of them are a half."""
MOST_COEFFICIENT = 20.0
"""A slow link also queues its own transfers: allow up to twenty times the bare serialisation time."""


def dose(frame: Frame) -> Dose | Missing:
    """Return baseline transfer seconds times (baseline speed / actual speed - 1), the slower end of the pair.

    Speed is nic.link_gbps where it was recorded and changed, else the goodput ceiling of the node's large transfers.
    """
    size = frame.number("bytes")
    if size is None:
        return Missing("requests have no bytes column")
    slow, lines = reported_slowness(frame)
    strength, sharp = SEEN, False
    if not lines:
        slow, lines, reason, sharp = _observed(frame)
        strength = SHAPE if any(frame.rates(metric) for metric in LOSS) else UNCLEAR
        if reason and not frame.rates("nic.link_gbps"):
            unseen = "nic.link_gbps was not recorded"
            return Missing(reason if reason == unseen else f"{unseen}, and {reason}")
    return Dose(
        columns=by_wire_time(frame, size, slow),
        ceilings=(MOST_COEFFICIENT, MOST_COEFFICIENT),
        moved=bool((slow[frame.incident] > 0).any()),
        evidence=tuple(lines),
        strength=strength,
        own=sharp,
        last=strength != SEEN and not sharp,
    )


def reported_slowness(frame: Frame) -> tuple[Floats, list[Evidence]]:
    """Return usual / actual link speed - 1 around each request's transfer, the slower end, and where it changed."""
    slow = np.zeros(frame.rows)
    for role in ("prefill", "decode"):
        now = frame.around("nic.link_gbps", role, 0.5)
        if now is None:
            continue
        usual = frame.reference("nic.link_gbps", role)
        with np.errstate(divide="ignore", invalid="ignore"):
            drop = np.where(now < LEAST_DROP * usual, usual / np.maximum(now, 1e-3) - 1, 0.0)
        slow = np.maximum(slow, positive(drop))
    lines = [
        Evidence(
            name=f"nic.link_gbps @ {rate.node}",
            value=f"{rate.base:.4g} → {rate.incident:.4g} Gb/s (mean)",
            source="counters, nic.link_gbps: mean, usual → in question",
            threshold=f"< {LEAST_DROP:g}× baseline",
        )
        for rate in frame.rates("nic.link_gbps").values()
        if rate.incident < LEAST_DROP * rate.base
    ]
    return (slow, lines) if lines else (np.zeros(frame.rows), [])


def _observed(frame: Frame) -> tuple[Floats, list[Evidence], str, bool]:
    """Return slowness, evidence, why there is none, and whether every slow ceiling is SHARP."""
    if frame.windowed:
        return np.zeros(frame.rows), [], "means over windows show no ceiling of single transfers", False
    layout = layout_dose(frame)
    if isinstance(layout, Dose) and layout.moved:
        return np.zeros(frame.rows), [], "descriptors per byte changed, so goodput says nothing about the link", False
    if frame.standing:
        return _held_below_the_link(frame)
    slow, lines, sharp = np.zeros(frame.rows), list[Evidence](), list[bool]()
    host = host_slowdown(frame)
    ceilings = goodput_ceilings(frame)
    if isinstance(ceilings, Missing):
        slow, lines = _longer_way(frame, host, lines)
        return slow, lines, "" if lines else str(ceilings.missing), False
    for ceiling in ceilings:
        if _elsewhere(frame, ceiling.role, ceiling.node):
            continue
        line = Evidence(
            name=f"goodput of large transfers @ {ceiling.node}, best tenth",
            value=f"{ceiling.before / 1e6:,.4g} → {ceiling.after / 1e6:,.4g} MB/s; its middle at "
            f"{ceiling.narrowness:.0%} of that; other stages of the hosts {host:.2f}× as slow",
            source="requests, bytes / wire seconds of busy periods",
            threshold=ceiling.rule,
        )
        if ceiling.is_link(host):
            labels = frame.nodes(ceiling.role)
            rows = (labels.codes == labels.names.index(ceiling.node)) & frame.incident
            slow[rows] = np.maximum(slow[rows], ceiling.before / ceiling.after - 1)
            lines.insert(0, line)
            sharp.append(ceiling.sharpness > SHARP)
        else:
            lines.append(line)
    if not sharp:
        slow, lines = _longer_way(frame, host, lines)
    return slow, lines[:3], "", bool(sharp) and all(sharp)


def _held_below_the_link(frame: Frame) -> tuple[Floats, list[Evidence], str, bool]:
    """Return the same without a baseline, from nodes whose transfers run into a limit far below the link's speed."""
    slow, lines = np.zeros(frame.rows), list[Evidence]()
    ceilings = standing_ceilings(frame)
    if isinstance(ceilings, Missing):
        return slow, [], str(ceilings.missing), False
    fallback = tcp_dose(frame)
    if isinstance(fallback, Dose) and fallback.moved:
        return slow, [], "the bytes take another way, so their goodput says nothing about the link", False
    for ceiling in ceilings:
        labels = frame.nodes(ceiling.role)
        rows = labels.codes == labels.names.index(ceiling.node)
        slow[rows] = np.maximum(slow[rows], ceiling.before / MOST_SLOWNESS / ceiling.after - 1)
        lines.append(
            Evidence(
                name=f"goodput of large transfers @ {ceiling.node}, best tenth",
                value=f"{ceiling.after / 1e6:,.4g} MB/s on a link that reports {ceiling.before / 1e6:,.4g} MB/s; its "
                f"middle at {ceiling.narrowness:.0%} of that",
                source="requests, bytes / wire seconds of busy periods; counters, nic.link_gbps",
                threshold=ceiling.rule,
            )
        )
    return slow, lines[:3], "", bool(lines)


def _longer_way(frame: Frame, host: float, lines: list[Evidence]) -> tuple[Floats, list[Evidence]]:
    """Return the slowness of nodes whose every transfer takes longer by about as much, and evidence, `lines` last."""
    slow, found = np.zeros(frame.rows), list[Evidence]()
    floors = transfer_floors(frame)
    for floor in () if isinstance(floors, Missing) else floors:
        if not floor.is_longer(host) or _elsewhere(frame, floor.role, floor.node):
            continue
        labels = frame.nodes(floor.role)
        rows = (labels.codes == labels.names.index(floor.node)) & frame.incident
        slow[rows] = np.maximum(slow[rows], floor.after / floor.before - 1)
        found.append(
            Evidence(
                name=f"wire seconds of small transfers @ {floor.node}, quickest tenth",
                value=f"{floor.before * 1e3:.3g} → {floor.after * 1e3:.3g} ms; their median rose by "
                f"{floor.middle * 1e3:.3g} ms; other stages of the hosts {host:.2f}× as slow",
                source="requests, wire_s of transfers of at most median size",
                threshold=floor.rule,
            )
        )
    return slow, found + lines


def _elsewhere(frame: Frame, role: Role, node: str) -> bool:
    """Whether the requests' bytes took another way than before: TCP, or one on which the node's NIC saw much fewer."""
    tcp, labels = tcp_share(frame), frame.nodes(role)
    here = labels.codes == labels.names.index(node)
    if tcp is not None and float(tcp[here & frame.incident].mean()) > MOST_TCP:
        return True
    size = frame.number("bytes")
    rate = frame.rates("nic.rx_bytes" if role == "decode" else "nic.tx_bytes").get(node)
    if size is None or rate is None or not rate.base > 0:
        return False
    # By when they had come: where they pile up, many come only after the period in which they were asked for.
    come_s = frame.arrival_s + frame.stages.ttft_s
    carried = [
        sum(float(size[here & (come_s >= begin) & (come_s < stop)].sum()) for begin, stop in frame.spans(incident))
        / frame.period_s(incident)
        for incident in (False, True)
    ]
    return rate.incident / rate.base < LEAST_SEEN * carried[1] / max(carried[0], 1e-9)


CAUSE = Cause(
    id="fabric.link_degraded",
    stages=("pull_wait_s", "wire_s"),
    dose=dose,
    action="check the link's speed, width and error counters at the nodes named (cable, optics, negotiated rate, a "
    "rate limit or traffic shaper, another route), and compare with bandwidth and latency probes between the same pair",
)
