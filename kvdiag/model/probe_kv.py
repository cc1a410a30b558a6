"""What `kvdiag probe kv` measured: a model's KV blocks moved in several layouts, and what a descriptor costs."""

from dataclasses import dataclass
from typing import Literal

from kvdiag.model.document import Document
from kvdiag.model.kv_geometry import KvGeometry
from kvdiag.model.probe import ProbeEnds, TransportProof
from kvdiag.model.probe_judgement import Judgement, Metric

KvMode = Literal["block", "layer", "coalesced", "contiguous"]


@dataclass(frozen=True, slots=True, kw_only=True)
class KvSettings:
    """`pairs` are the (prefill, decode) tensor-parallel ranks that exchange something, of which the `measured` were
    moved: the first; each alone and then all together; or all together. The fastest of `repeats` transfers of one list
    is what a round counts. `model` says what configuration file the geometry was read from; `memory` and `peer_memory`
    are kinds of memory, of this end and of the peer's.
    """

    transport: Literal["rdma", "tcp", "nixl"]
    operations: tuple[str, ...]
    geometry: KvGeometry
    tokens: tuple[int, ...]
    prefill_tp: int
    decode_tp: int
    pairs: tuple[tuple[int, int], ...]
    measured: Literal["first", "each", "all"]
    rounds: int
    repeats: int
    model: str | None = None
    memory: str = "host"
    peer_memory: str = "host"


@dataclass(frozen=True, slots=True, kw_only=True)
class KvRequest:
    """One request over all ranks: what its KV cache weighs, and what one decode rank fetches."""

    bytes_per_token: int
    pairs: int
    descriptors: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KvRow:
    """One layout of one size for one pair of ranks, or for all together (None). `total` is the sum of the four stages'
    times; every round's bytes were verified.

    block: every piece a descriptor, blocks scattered at both ends; layer: the same, posted layer by layer; coalesced:
    blocks in one run per tensor; contiguous: one descriptor of as many bytes. `of_contiguous` is bandwidth over the
    contiguous transfer's in the same round.
    """

    operation: str
    pair: tuple[int, int] | None
    mode: KvMode
    tokens: int
    descriptors: int
    bytes: int
    build: Metric
    post: Metric
    wire: Metric
    poll: Metric
    total: Metric
    fastest_s: float
    bandwidth: Metric
    of_contiguous: Metric


@dataclass(frozen=True, slots=True, kw_only=True)
class Coefficient:
    """`low` and `high` bound it with 95 % confidence; None where no point is left to tell, or it was set to 0."""

    value: float
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CostModel:
    """Seconds = fixed + descriptors × per_descriptor + bytes × per_byte, of each point's fastest round."""

    fixed_s: Coefficient
    per_descriptor_s: Coefficient
    per_byte_s: Coefficient
    points: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What the model, fitted without this size, expects of it, and what the fastest round took."""

    pair: tuple[int, int] | None
    mode: KvMode
    tokens: int
    predicted_s: float
    measured_s: float
    relative_error: float


@dataclass(frozen=True, slots=True, kw_only=True)
class KvCost:
    """`doubt` says in one line why the fit does not hold, and what to do: `model` is then no result. None: it holds."""

    operation: str
    model: CostModel
    predictions: tuple[Prediction, ...]
    doubt: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class KvDocument(Document):
    """`ends` is None where both ends are processes of this host.

    With `failure`, the line that the run ended in, everything is of the rounds before it.
    """

    schema: Literal["kvdiag.probe-kv/1"]
    settings: KvSettings
    request: KvRequest
    ends: ProbeEnds | None
    rows: tuple[KvRow, ...]
    costs: tuple[KvCost, ...]
    proof: TransportProof
    judgements: tuple[Judgement, ...]
    missing: tuple[str, ...]
    failure: str | None = None

    def sizes(self, operation: str) -> int:
        """Return how many different amounts of bytes an operation's rows moved; a fit needs two to tell their cost."""
        return len({row.bytes for row in self.rows if row.operation == operation})
