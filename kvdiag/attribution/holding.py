"""Whether transfers take longer, and so hold a decode node's KV space longer, told from gauges alone (Little's law).

Where one recorded stage covers both the wait for KV space and the transfer, the stage itself cannot tell them apart.
"""

import numpy as np

from kvdiag.attribution.causes.fabric_link_degraded import reported_slowness
from kvdiag.attribution.frame import Floats, Frame
from kvdiag.model.finding import Evidence

LONGER = 4.0
"""Times as long, from which on the wait for KV space follows from the transfers. Where it does not, few requests and a
gauge that is read once a second make up to 3.3 of it in simulated clusters; where it does, 4.5 to a thousand."""
LEAST_ROWS = 20
HIGH = 0.9
"""A tenth of the transfers over a link that slow is enough to fill the space: troubles come in bursts."""


def longer_transfers(frame: Frame) -> tuple[Evidence, ...]:
    """Return a line for each decode node whose transfers take LONGER times as long as in the baseline, worst first.

    Seconds of a transfer = transfers in flight / transfers finished per second (Little 1961); where those in flight
    are not recorded, a link that is reported slower tells at least its own part.
    """
    if frame.standing or frame.windowed:
        return ()
    labels = frame.nodes("decode")
    finished_s = frame.arrival_s + frame.stages.ttft_s
    slower, _ = reported_slowness(frame)
    found = []
    for code, node in enumerate(labels.names):
        here = labels.codes == code
        if min(np.sum(here & frame.incident), np.sum(here & ~frame.incident)) < LEAST_ROWS:
            continue
        rate = frame.rates("engine.pulls_in_flight").get(node)
        if rate is None:
            times = 1 + float(np.quantile(slower[here & frame.incident], HIGH))
            value, source = f"{times:.3g}× for a slower link", "counters, nic.link_gbps around the transfers"
        else:
            before, after = (
                running / max(_finished(frame, finished_s[here], incident), 1e-9)
                for running, incident in ((rate.base, False), (rate.incident, True))
            )
            times = after / before if before > 0 else 0.0
            value = f"{before:.3g} → {after:.3g} s"
            source = "counters, engine.pulls_in_flight / requests finished per second"
        if times > LONGER:
            line = Evidence(
                name=f"seconds of a transfer @ {node}",
                value=f"{value}: KV space is held longer, and waited for",
                source=source,
                threshold=f"> {LONGER:g}×",
            )
            found.append((times, line))
    return tuple(line for _, line in sorted(found, key=lambda one: one[0], reverse=True))


def _finished(frame: Frame, at_s: Floats, incident: bool) -> float:
    """Return how many requests a second reached their first token in a period, sampling undone."""
    count = sum(int(np.sum((at_s >= begin) & (at_s < stop))) for begin, stop in frame.spans(incident))
    return count / frame.sampling / frame.period_s(incident)
