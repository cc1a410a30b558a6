"""The faults the demo can begin, what each is called in a diagnosis, and where one cannot be had."""

import random
from collections.abc import Mapping, Sequence

from kvdiag.model.diagnosis import Verdict
from kvdiag.model.missing import Missing
from kvdiag_probes.demo.settings import TransportName

CAUSES: Mapping[str, str | None] = {
    "none": None,
    "registration": "registration.on_path",
    "layout": "layout.fragmented",
    "link": "fabric.link_degraded",
    "loss": "fabric.loss",
    "delay": "fabric.link_degraded",
    "pause": None,
    "overload": "schedule.prefill_queue",
    "tcp": "fabric.tcp_fallback",
}
"""Fault to the cause id that a right diagnosis names; None where it must name none."""

DESCRIPTIONS: Mapping[str, str] = {
    "none": "nothing was changed",
    "registration": "each request allocated and registered a staging buffer of its own before its transfer",
    "layout": "each token of each layer was a descriptor of its own (1 KiB), scattered over the pool",
    "link": "the prefill node's link was limited to 0.8 Gbit/s",
    "loss": "six in a hundred of the segments that reached the decode node were dropped",
    "delay": "each packet that left the prefill node arrived 20 ms later",
    "pause": "the decode process was stopped for 0.4 s every 1.6 s",
    "overload": "three times as many requests arrived, more than prefill serves without a queue",
    "tcp": "transfers went over TCP instead of RDMA",
}

RANDOM: Sequence[str] = ("registration", "layout", "link")
"""Those that a run without --fault chooses from: quick, and told apart on any machine."""

LINK_BITS_PER_SECOND = 0.8e9
LOSS_SHARE = 0.06
DELAY_S = 0.020
SURGE = 3.0
PAUSE_S, PAUSE_EVERY_S = 0.4, 1.6

HOST = "schedule.host_contention"

_ON_THE_LINK = ("link", "loss", "delay")


def unavailable(fault: str, transport: TransportName, link: Missing | None) -> Missing | None:
    """Return why this fault cannot be made here, or None where it can; `link` is network.availability()."""
    if fault == "registration" and transport == "tcp":
        return Missing("the TCP transport registers no memory: it needs NIXL's wheel")
    if fault == "tcp":
        return Missing("there is no RDMA here to be given up for it: benchmarks/real_transfers_lab.py has soft-RoCE")
    if fault in _ON_THE_LINK:
        return link
    return None


def choose(transport: TransportName, link: Missing | None, rng: random.Random) -> str:
    """Pick one of the RANDOM faults that can be made here."""
    return rng.choice([fault for fault in RANDOM if unavailable(fault, transport, link) is None])


def matches(fault: str, verdict: Verdict) -> bool:
    """Whether the verdict says what was done: its cause, or no cause; a peer that pauses is more than "no change".

    Where nothing was done, the machine's other work may slow it: to say so is right.
    """
    if fault == "none" and verdict.cause == HOST:
        return True
    return verdict.cause == CAUSES[fault] and (fault != "pause" or verdict.status == "abstain")
