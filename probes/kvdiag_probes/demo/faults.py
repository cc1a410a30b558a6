"""The faults the demo can begin, what each is called in a diagnosis, and where one cannot be had."""

import random
from collections.abc import Mapping, Sequence

from kvdiag.model.missing import Missing
from kvdiag_probes.demo.settings import TransportName

CAUSES: Mapping[str, str | None] = {
    "none": None,
    "registration": "registration.on_path",
    "layout": "layout.fragmented",
    "link": "fabric.link_degraded",
}
"""Fault to the cause id that a right diagnosis names."""

DESCRIPTIONS: Mapping[str, str] = {
    "none": "nothing was changed",
    "registration": "each request allocated and registered a staging buffer of its own before its transfer",
    "layout": "each token of each layer was a descriptor of its own (1 KiB), scattered over the pool",
    "link": "the prefill node's link was limited to 0.8 Gbit/s",
}

LINK_BITS_PER_SECOND = 0.8e9


def unavailable(fault: str, transport: TransportName, link: Missing | None) -> Missing | None:
    """Return why this fault cannot be made here, or None where it can; `link` is network.availability()."""
    if fault == "registration" and transport == "tcp":
        return Missing("the TCP transport registers no memory: it needs NIXL's wheel")
    if fault == "link":
        return link
    return None


def choose(transport: TransportName, link: Missing | None, rng: random.Random) -> str:
    """Pick one of the faults that can be made here, at random; never "none"."""
    possible: Sequence[str] = [
        fault for fault in CAUSES if fault != "none" and unavailable(fault, transport, link) is None
    ]
    return rng.choice(possible)
