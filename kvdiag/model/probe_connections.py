"""What `kvdiag probe connections` measured: what queue pairs cost, how many there can be, and how they share."""

from dataclasses import dataclass
from typing import Literal

from kvdiag.model.document import Document
from kvdiag.model.probe import ProbeEnds
from kvdiag.model.probe_judgement import Judgement, Metric


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionsSettings:
    """`active` are the numbers of queue pairs that share one load; `prefill` × `decode` instances for the advice."""

    device: str
    rounds: int
    threads: tuple[int, ...]
    pairs_per_thread: int
    most_pairs: int
    active: tuple[int, ...]
    size_bytes: int
    iterations: int
    prefill: int
    decode: int
    pairs_per_link: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SetupRow:
    """Seconds of one call for one queue pair; init, rtr and rts are ibv_modify_qp into that state."""

    step: Literal["create", "init", "rtr", "rts", "destroy"]
    seconds: Metric


@dataclass(frozen=True, slots=True, kw_only=True)
class CreationRow:
    """Queue pairs made per second by so many threads together; `shared_receive_queue` where all share one."""

    threads: int
    pairs: int
    shared_receive_queue: bool
    per_second: Metric


SharingKind = Literal["srq", "xrc", "dc"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SharingRow:
    """A way of reaching many peers with few objects, and the seconds to make one; `reason` where it was not made.

    srq: shared receive queue; xrc: extended reliable connection; dc: dynamically connected transport. `refused` where
    the device has it but gave none.
    """

    kind: SharingKind
    status: Literal["offered", "not_offered", "refused", "not_observable"]
    create: Metric | None
    reason: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Exhaustion:
    """How many queue pairs could be made before a refusal (or the probe's bound), and that as many could be again."""

    max_qp: int
    made: int
    made_again: int
    refusal: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ActiveRow:
    """Bandwidth of the same number of messages in flight over so many queue pairs, and its share of the best."""

    queue_pairs: int
    queue_depth: int
    bandwidth: Metric
    of_best: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FanOut:
    """What P × D needs of one adapter: queue pairs on a prefill and on a decode node, and the time to make them.

    `most_peers` is for how many peers queue pairs were made here at once. `fits` is None where more are needed than
    were made and nothing refused: what was not tried is not known, whatever the device states.
    """

    prefill_pairs: int
    decode_pairs: int
    most_peers: int
    setup_s: float
    fits: bool | None
    advice: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionsDocument(Document):
    """`ends` and `active` are empty without a peer.

    With `failure`, the line that the run ended in, everything is of the rounds before it.
    """

    schema: Literal["kvdiag.probe-connections/1"]
    settings: ConnectionsSettings
    ends: ProbeEnds | None
    setup: tuple[SetupRow, ...]
    creation: tuple[CreationRow, ...]
    sharing: tuple[SharingRow, ...]
    exhaustion: Exhaustion
    active: tuple[ActiveRow, ...]
    fan_out: FanOut
    judgements: tuple[Judgement, ...]
    missing: tuple[str, ...]
    failure: str | None = None
