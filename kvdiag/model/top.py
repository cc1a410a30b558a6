"""What `kvdiag top` shows at one instant: exporters, pairs, engines, ports, registration, queue pairs and findings."""

from dataclasses import dataclass
from typing import Literal

from kvdiag.model.document import Document

State = Literal["waiting", "fresh", "stale", "failed"]
"""Of an exporter: not asked yet; answered last time; answered, but its own collectors lag; did not answer last time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExporterState:
    """`data_age_s` is how old the newest data shown of it is, None where there is none; `trouble` says what is wrong.

    `window_s` is the time that its rates are over, `restarts` how often it was seen to begin anew.
    """

    url: str
    state: State
    data_age_s: float | None = None
    window_s: float | None = None
    restarts: int = 0
    trouble: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PairRow:
    """One prefill and one decode node. Rates and quantiles are over the window; None is "not observed".

    A quantile is also None where nothing was counted in the window: then the count beside it is 0, not None.
    `transfer_share` is the mean transfer as a share of the mean TTFT. `failures_per_s` counts the engines of both
    nodes: no engine tells the peer of a failed transfer.
    """

    prefill_node: str
    decode_node: str
    direction: str
    requests_per_s: float | None = None
    transfers: float | None = None
    transfer_p50_s: float | None = None
    transfer_p99_s: float | None = None
    bytes_per_s: float | None = None
    ttft_p50_s: float | None = None
    ttft_p99_s: float | None = None
    transfer_share: float | None = None
    failures_per_s: float | None = None
    stale: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRow:
    """One engine by its own metrics, per source that times transfers."""

    node: str
    engine: str
    role: str
    source: str
    up: float | None = None
    transfers: float | None = None
    transfer_p50_s: float | None = None
    transfer_p99_s: float | None = None
    bytes_per_s: float | None = None
    failures_per_s: float | None = None
    expired_per_s: float | None = None
    waiting: float | None = None
    ttft_p99_s: float | None = None
    carrier: str = ""
    stale: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PortRow:
    """One RDMA port, or one network interface (`port` is empty); utilisation is of the negotiated rate."""

    node: str
    device: str
    port: str
    up: float | None = None
    speed_bytes_per_s: float | None = None
    transmit_bytes_per_s: float | None = None
    receive_bytes_per_s: float | None = None
    transmit_ratio: float | None = None
    receive_ratio: float | None = None
    retransmits_per_s: float | None = None
    out_of_sequence_per_s: float | None = None
    congestion_per_s: float | None = None
    paused_ratio: float | None = None
    errors_per_s: float | None = None
    stale: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistrationRow:
    """Registered memory of an engine over all devices, or the window of a GPU that NICs reach (`kind` gpu).

    `pinned_ratio` is of the engine's memlock limit, or of the GPU's window; `regions_ratio` the share of the fullest
    device's limit on memory regions, all processes together.
    """

    node: str
    subject: str
    kind: Literal["engine", "gpu"]
    regions: float | None = None
    region_bytes: float | None = None
    registered_per_s: float | None = None
    deregistered_per_s: float | None = None
    refused_per_s: float | None = None
    pinned_bytes: float | None = None
    pinned_limit_bytes: float | None = None
    pinned_ratio: float | None = None
    regions_ratio: float | None = None
    stale: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuePairRow:
    """The queue pairs of one engine on one device; `used_ratio` is of the device's limit, all processes together."""

    node: str
    device: str
    engine: str
    total: float | None = None
    ready: float | None = None
    error: float | None = None
    other: float | None = None
    created_per_s: float | None = None
    gone_per_s: float | None = None
    used_ratio: float | None = None
    limit: float | None = None
    stale: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingRow:
    """A finding that an exporter says holds now; summary and action are empty where only its metric was read."""

    severity: str
    code: str
    node: str
    subject: str
    summary: str = ""
    action: str = ""
    stale: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TopDocument(Document):
    """One frame. `causes` are shares of the variance of TTFT; `missing` says what no exporter serves."""

    schema: Literal["kvdiag.top/1"] = "kvdiag.top/1"
    exporters: tuple[ExporterState, ...]
    pairs: tuple[PairRow, ...]
    engines: tuple[EngineRow, ...]
    ports: tuple[PortRow, ...]
    registration: tuple[RegistrationRow, ...]
    queue_pairs: tuple[QueuePairRow, ...]
    findings: tuple[FindingRow, ...]
    causes: dict[str, float]
    missing: tuple[str, ...] = ()
