"""What carried the KV bytes: what engines claim to have moved, against what kernel and cards counted meanwhile."""

from dataclasses import dataclass

ENOUGH = 0.9
"""A counter that saw less of the claimed bytes did not carry them: headers only ever add."""

LITTLE = 0.1
"""Below this share a counter carried none of them: there is always some other traffic."""

LEAST_BYTES = 1 << 20
"""Fewer claimed bytes are lost in other traffic, and tell nothing."""

TRANSPORTS = ("rdma", "tcp", "tcp_loopback", "local", "mixed", "unknown")
"""`local`: shared memory or NVLink, which no counter of this host sees."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """Bytes of one direction over one window; None where nothing counts them.

    `ip` is the kernel's IP stack without loopback. `rdma_present`: the host has RDMA ports at all.
    """

    claimed: float
    rdma: float | None
    ip: float | None
    loopback: float | None
    rdma_present: bool


def judge(moved: Moved) -> tuple[str, str]:
    """Return the transport, one of TRANSPORTS, and why.

    Counters are those of the host, other programs' traffic included: they can exclude a carrier for certain, but only
    make one likely. Where two could each have carried everything, none is named.
    """
    claimed = moved.claimed
    if claimed < LEAST_BYTES:
        return "unknown", f"only {claimed:.3g} B claimed in the window"
    if moved.ip is None or (moved.rdma is None and moved.rdma_present):
        absent = "the IP stack" if moved.ip is None else "the RDMA ports"
        return "unknown", f"nothing counts the bytes of {absent} here"
    shares = {
        "rdma": (moved.rdma or 0.0) / claimed,
        "tcp": moved.ip / claimed,
        "tcp_loopback": (moved.loopback or 0.0) / claimed,
    }
    told = ", ".join(f"{name} {share:.2f}" for name, share in shares.items())
    full = [name for name, share in shares.items() if share >= ENOUGH]
    some = [name for name, share in shares.items() if share >= LITTLE]
    if len(full) == 1:
        return full[0], f"shares of the claimed bytes: {told}"
    if len(full) > 1:
        return "unknown", f"{' and '.join(full)} could each have carried them: {told}"
    if not some:
        return "local", f"no counter saw a tenth of the claimed bytes: {told}"
    if len(some) > 1 and sum(shares.values()) >= ENOUGH:
        return "mixed", f"shares of the claimed bytes: {told}"
    return "unknown", f"the counters saw only a part of the claimed bytes: {told}"


def ranks_behind(moved: Moved) -> int | None:
    """Return how many times the claimed bytes the cards carried, where that is a whole number of at least two.

    An engine that reports for one rank of several claims a whole fraction of what is moved.
    """
    if moved.claimed < LEAST_BYTES or moved.rdma is None:
        return None
    times = moved.rdma / moved.claimed
    whole = round(times)
    return whole if whole >= 2 and abs(times - whole) <= 0.1 * whole / 2 and whole <= 64 else None
