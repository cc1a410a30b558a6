"""What can be seen at this end after an operation failed: port, GID, queue pairs, and the error counters that moved."""

from collections.abc import Iterator

from kvdiag.model.missing import Missing
from kvdiag.model.rdma import PortCounters
from kvdiag_probes.proof import read_counters
from kvdiag_probes.verbs import Endpoint

_TRAFFIC = (
    "sent_pkts",
    "rcvd_pkts",
    "port_xmit",
    "port_rcv_data",
    "port_rcv_packets",
    "unicast",
    "multicast",
    # rdma_rxe: operations, and acknowledgements that went with later ones
    "rdma_sends",
    "rdma_recvs",
    "ack_deferred",
    # mlx5
    "rx_write_requests",
    "rx_read_requests",
    "rx_atomic_requests",
    "rx_dct_connect",
    # the age in ms that a driver lets its counters have
    "lifespan",
    # efa, bnxt_re, mana
    *(f"{way}_{what}" for way in ("rx", "tx", "send", "recv") for what in ("bytes", "pkts", "wrs", "requests_num")),
    *(f"rdma_{way}_{what}" for way in ("read", "write") for what in ("wrs", "bytes", "resp_bytes", "recv_bytes")),
)
"""What counts traffic begins so; every other counter that grows is shown."""
_MOST_COUNTERS = 6


def symptoms(endpoint: Endpoint, before: PortCounters | Missing, port_state: str) -> list[str]:
    """Return facts for an error's line; `port_state` is empty for an ACTIVE port."""
    choice = endpoint.choice
    states = endpoint.states()
    bad = sorted({state for state in states if state != "RTS"})
    found = [
        port_state or f"port {choice.device}/{choice.port} is ACTIVE",
        f"GID {choice.gid_index} {choice.gid} ({choice.type})",
        f"path MTU {endpoint.path_mtu}",
        f"{sum(state != 'RTS' for state in states)} of {len(states)} queue pairs in {'/'.join(bad)}"
        if bad
        else "queue pairs in RTS",
    ]
    moved = list(moved_errors(before, read_counters(choice.device, choice.port)))
    return found + (moved[:_MOST_COUNTERS] or ["no error counter moved"])


def moved_errors(before: PortCounters | Missing, after: PortCounters | Missing) -> Iterator[str]:
    """Yield `name +N` for every counter that grew and does not count traffic; what is missing says so once."""
    found = grown_errors(before, after)
    if isinstance(found, Missing):
        yield "counters not readable"
        return
    for name, grown in found.items():
        yield f"{name} +{grown}"


def grown_errors(before: PortCounters | Missing, after: PortCounters | Missing) -> dict[str, int] | Missing:
    """Return by how much each counter grew that did and that does not count traffic."""
    if isinstance(before, Missing):
        return before
    if isinstance(after, Missing):
        return after
    found = {}
    for old, new in ((before.counters, after.counters), (before.hw_counters, after.hw_counters)):
        for name, value in sorted(new.items()):
            grown = value - old.get(name, value)
            if grown > 0 and not name.startswith(_TRAFFIC):
                found[name] = grown
    return found
