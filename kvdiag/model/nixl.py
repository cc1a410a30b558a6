"""NIXL agents' own telemetry: the prometheus_mp store and the BUFFER ring."""

from dataclasses import dataclass

from kvdiag.model.missing import Missing

EVENTS = (
    "tx_bytes",
    "rx_bytes",
    "tx_requests_num",
    "rx_requests_num",
    "memory_registered",
    "memory_deregistered",
    "xfer_time",
    "xfer_post_time",
    "err_not_posted",
    "err_invalid_param",
    "err_backend",
    "err_not_found",
    "err_mismatch",
    "err_not_allowed",
    "err_repost_active",
    "err_unknown",
    "err_not_supported",
    "err_remote_disconnect",
    "err_canceled",
    "err_no_telemetry",
    "telemetry_events_dropped",
)
"""NIXL's event types in the order of their numbers, without the prefix `agent_`; bytes, counts and (times) µs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Histogram:
    """`counts[i]` samples up to `bounds_s[i]` and above the one before; one more count for those above all."""

    bounds_s: tuple[float, ...]
    counts: tuple[int, ...]
    sum_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NixlStore:
    """One agent's totals since its creation, by the names of EVENTS.

    Only the initiator of a transfer counts it. `heartbeat_age_s` is how long ago the agent last wrote: a live one
    writes about every 0.1 s (NIXL_TELEMETRY_RUN_INTERVAL).
    """

    path: str
    pid: int
    instance: int
    agent: str
    hostname: str
    local_rank: str
    heartbeat_age_s: float | Missing
    totals: dict[str, int]
    histograms: dict[str, Histogram]


@dataclass(frozen=True, slots=True, kw_only=True)
class NixlStores:
    """`unreadable` holds, by path, why a store could not be read."""

    stores: tuple[NixlStore, ...]
    unreadable: dict[str, str]


@dataclass(frozen=True, slots=True)
class NixlTransfer:
    """One completed transfer of this agent: bytes sent (WRITE) or received (READ), seconds to post and to completion.

    The time ends when the application polls the state, not on the wire.
    """

    direction: str
    bytes: int
    post_s: float
    xfer_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NixlRing:
    """What waits in one agent's ring, read without consuming; `events` are names of EVENTS with their values, in order.

    Nobody but a consumer ever makes room: once `full`, NIXL drops every further event silently. Positions are slot
    numbers; a consumer moves `read_position`, a new agent of the same name sets both back to 0.
    """

    path: str
    agent: str
    version: int
    event_bytes: int
    capacity: int
    read_position: int
    write_position: int
    full: bool
    events: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NixlRings:
    """`unreadable` holds, by path, why a ring could not be read."""

    rings: tuple[NixlRing, ...]
    unreadable: dict[str, str]
