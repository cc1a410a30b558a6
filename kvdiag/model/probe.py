"""What `kvdiag probe bandwidth|latency` measured between two nodes, and the proof of what carried it."""

from dataclasses import dataclass
from typing import Literal

from kvdiag.model.document import Document
from kvdiag.model.finding import Evidence
from kvdiag.model.measurement import Distribution
from kvdiag.model.probe_judgement import Judgement, Metric


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeSettings:
    """What was asked for; `iterations` or `duration_s` is None, whichever did not bound the run.

    `queue_depth` is of each of `queue_pairs`, `in_flight` bounds all of them together; `batch` and `signal_every` are
    None where the message size decides.
    """

    kind: Literal["bandwidth", "latency"]
    operation: Literal["write", "read", "write-imm"]
    transport: Literal["rdma", "tcp"]
    sizes: tuple[int, ...]
    queue_depth: int
    iterations: int | None
    duration_s: float | None
    warmup: int
    queue_pairs: int = 1
    in_flight: int | None = None
    bidirectional: bool = False
    ping_pong: bool = False
    inline: int = 0
    batch: int | None = None
    signal_every: int | None = None
    memory: str = "host"
    peer_memory: str = "host"
    relaxed_ordering: bool = False
    ordering_rounds: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeEnds:
    """The peer's control address and host; device, port and GID at each end, and the path MTU in bytes, for RDMA.

    The memory at each end says its kind and why it was taken; `rails` are further pairs of devices used beside the
    first; `pinning` and `completion_timestamps` say what was done and seen, or why not. `latency_loop` is what posted
    and polled here where one message was outstanding, compiled code or the interpreter and why; in a ping-pong
    `peer_latency_loop` did so at the peer.
    """

    peer: str
    peer_host: str
    local_device: str | None = None
    peer_device: str | None = None
    path_mtu: int | None = None
    local_memory: str | None = None
    peer_memory: str | None = None
    rails: tuple[str, ...] = ()
    pinning: str | None = None
    completion_timestamps: str | None = None
    latency_loop: str | None = None
    peer_latency_loop: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTime:
    stage: str
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeDurations:
    """Seconds of each step: `connect_s` from the first queue pair call to both ends connected, the exchange over the
    control channel included and memory excluded; registration is None for TCP, which has none.

    `stages` split the whole run, of `total_s`, without gap or overlap; kvdiag_probes.session says what each is.
    """

    connect_s: float
    register_s: float | None
    peer_register_s: float | None
    first_transfer_s: float
    steady_transfer_s: float
    total_s: float | None = None
    stages: tuple[StageTime, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeResult:
    """One message size. `latency_s` is from post to completion, of every `latency_stride`-th operation; of a ping-pong
    it is half of each round trip, from post to the answer in memory.

    `iterations` are of each rail and direction, `bytes` of all together, `seconds` of the slower direction;
    `reverse_bytes_per_second` is the peer's direction alone. Where `latency_exact` is false, there were more samples
    than are kept, and percentiles are those of a histogram, off by 1/4096 at most.
    """

    size_bytes: int
    iterations: int
    bytes: int
    verified_bytes: int
    seconds: float
    bytes_per_second: float
    peak_bytes_per_second: float
    operations_per_second: float
    latency_stride: int
    latency_s: Distribution
    latency_exact: bool = True
    reverse_bytes_per_second: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderingCheck:
    """In each round the peer compared a payload as soon as it saw the flag written after it; all were complete."""

    size_bytes: int
    rounds: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TransportProof:
    """Whether the kernel's own counts agree that the transport carried the payload: every byte, warm-up included."""

    status: Literal["proved", "contradicted", "not_observable"]
    payload_bytes: int
    evidence: tuple[Evidence, ...]
    missing: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PortErrors:
    """The counters of a local port that grew during the probe and do not count traffic; None where `missing` says why.

    They belong to the port, not to the probe alone. Each end counts its own part of a fault: a requester the packets
    that it sent again, a responder those that came out of order.
    """

    port: str
    grown: dict[str, int] | None
    missing: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Threshold:
    """A bound that the user gave, and what a size reached, both in `unit`."""

    name: str
    size_bytes: int
    unit: str
    limit: float
    value: float
    met: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeDocument(Document):
    """`results` and what else describes one run are those of the last of `rounds`, or of the last whose
    proof is contradicted; `metrics` are of all of them. With `failure`, the line that the run ended in, they are of the
    whole rounds before it, of `rounds_asked`; where not one was whole, `results` are of the sizes before it.
    """

    schema: Literal["kvdiag.probe/1"]
    settings: ProbeSettings
    ends: ProbeEnds
    durations: ProbeDurations
    results: tuple[SizeResult, ...]
    proof: TransportProof
    port_errors: tuple[PortErrors, ...] = ()
    thresholds: tuple[Threshold, ...] = ()
    ordering: OrderingCheck | None = None
    rounds: int = 1
    rounds_asked: int = 1
    metrics: tuple[Metric, ...] = ()
    judgements: tuple[Judgement, ...] = ()
    failure: str | None = None
