"""What `kvdiag probe cold` measured: a pair's first transfer, step by step, against the steady state."""

from dataclasses import dataclass
from typing import Literal

from kvdiag.model.document import Document
from kvdiag.model.probe import ProbeEnds
from kvdiag.model.probe_judgement import Judgement, Metric


@dataclass(frozen=True, slots=True, kw_only=True)
class ColdSettings:
    transport: Literal["rdma", "tcp"]
    size_bytes: int
    rounds: int
    steady_iterations: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ColdStage:
    """`first_s` is the command's very first connection, when neighbour caches and code are cold too; `again` the median
    of the later ones, each on a fresh connection.

    resolve: the peer's name; handshake: TCP and the agent's greeting; open: device, domain, completion queue, queue
    pair to INIT; register: this end's buffer; peer: the exchange with the agent and its set-up, but for its search
    for the device and the allocation of its buffer; peer_register: that buffer; connect: RTR, with address
    resolution, and RTS (TCP: the data connection); first_write.
    """

    name: str
    first_s: float
    again: Metric


@dataclass(frozen=True, slots=True, kw_only=True)
class ColdDocument(Document):
    """`steady` is one transfer on a used connection; `slowdown` a fresh connection's total over it.

    With `failure`, the line that the run ended in, everything is of the rounds before it.
    """

    schema: Literal["kvdiag.probe-cold/1"]
    settings: ColdSettings
    ends: ProbeEnds
    stages: tuple[ColdStage, ...]
    total_first_s: float
    total: Metric
    steady: Metric
    slowdown: Metric
    judgements: tuple[Judgement, ...]
    missing: tuple[str, ...]
    failure: str | None = None
