"""What was measured between this host and a peer, beside the peer's snapshot."""

from dataclasses import dataclass
from typing import Literal

from kvdiag.model.missing import Missing


@dataclass(frozen=True, slots=True, kw_only=True)
class PairTransfer:
    """One block moved and compared. `local` and `peer` are device, port and GID at each end, as far as it came.

    `wc_status` is the completion's ibv_wc_status where it failed, else None; `udp` says what a datagram between the
    very addresses of the two GIDs met afterwards: an answer, silence, or no way to send it.
    """

    operation: Literal["write", "read"]
    size_bytes: int
    verified: bool
    local: str
    peer: str | None
    path_mtu: int | None
    error: str | None
    wc_status: int | None
    udp: Literal["answers", "silent", "unreachable"] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SideChannel:
    """An address at which a process of the peer says that it can be reached; `error` is None where it answers."""

    process: str
    host: str
    port: int
    error: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PairMeasurements:
    """Seconds. The peer's clock is ahead of this host's by at least `clock_ahead_low_s`, at most `clock_ahead_high_s`.

    `address` is the peer's agent, `round_trip_s` of the request that gave the tightest bound.
    """

    address: str
    round_trip_s: float | Missing
    clock_ahead_low_s: float | Missing
    clock_ahead_high_s: float | Missing
    side_channels: tuple[SideChannel, ...]
    transfers: tuple[PairTransfer, ...] | Missing
