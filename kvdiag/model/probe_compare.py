"""What `kvdiag probe compare` measured: several ways of moving the same bytes between the same two nodes, by turns."""

from dataclasses import dataclass
from typing import Literal

from kvdiag.model.document import Document
from kvdiag.model.probe import ProbeEnds, TransportProof
from kvdiag.model.probe_judgement import Judgement, Metric


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareSettings:
    """`methods` as asked for; the first is what the others are compared with."""

    methods: tuple[str, ...]
    sizes: tuple[int, ...]
    queue_depth: int
    iterations: int
    rounds: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodResult:
    """One method at one size; `ratio` is its bandwidth over the reference method's, taken round by round."""

    method: str
    size_bytes: int
    bandwidth: Metric
    latency_p50: Metric
    ratio: Metric


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodProof:
    """The proof of every round's transport; the gravest status of all rounds, with that round's evidence."""

    method: str
    proof: TransportProof


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareDocument(Document):
    """`ends` are those of the first RDMA method, or of TCP where no other was asked for.

    With `failure`, the line that the run ended in, everything is of the rounds before it.
    """

    schema: Literal["kvdiag.probe-compare/1"]
    settings: CompareSettings
    ends: ProbeEnds
    results: tuple[MethodResult, ...]
    proofs: tuple[MethodProof, ...]
    link_bytes_per_second: float | None
    judgements: tuple[Judgement, ...]
    missing: tuple[str, ...]
    failure: str | None = None
