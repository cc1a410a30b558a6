"""What single sources say before it is joined: of a request on one side, of one transfer handle, of a time window.

Joined, the request kind is the row `TransferRecord`. Seconds on the wall clock for instants, seconds for durations,
bytes, counts; None is "not observed". `evidence` grades what is not plainly measured.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from kvdiag.model.transfer import Grade

Side = Literal["prefill", "decode", "both", "client", "part"]
"""Who saw it: one of the pair, an engine that does both, whoever sent the request; "part" adds stage seconds only."""

KeyKind = Literal["id", "trace", "room"]
Key = tuple[KeyKind, str]
"""One identity of a request: its id as the client gave it, its W3C trace id, SGLang's bootstrap room in decimal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestPiece:
    """One source's view of one request; `side` is None where the source does not tell.

    `setup_end_s`, `admit_end_s` and `kv_present_s` are when the decode side had its connection, its KV blocks and the
    KV cache; `source` is the package and what of it (for example "vllm span"), `error` why the request failed.
    """

    keys: tuple[Key, ...]
    source: str
    side: Side | None = None
    node: str | None = None
    start_s: float | None = None
    prefill_end_s: float | None = None
    setup_end_s: float | None = None
    admit_end_s: float | None = None
    kv_present_s: float | None = None
    first_token_s: float | None = None
    queue_s: float | None = None
    prefill_s: float | None = None
    first_step_s: float | None = None
    setup_s: float | None = None
    register_s: float | None = None
    prompt_tokens: float | None = None
    uncached_tokens: float | None = None
    output_tokens: float | None = None
    bytes: float | None = None
    direction: str | None = None
    error: str = ""
    evidence: Mapping[str, Grade] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class HandleTransfer:
    """One transfer handle: (local rank, remote rank, attempt); a request has none or many of them.

    `keys` is empty where the source knows no request. `duration_s` is from post to completion as seen, `post_s` the
    part of it until posting returned, `prepare_s` what building it took before; `error` is the status of a failed one.
    """

    source: str
    keys: tuple[Key, ...] = ()
    node: str | None = None
    peer: str | None = None
    direction: str | None = None
    backend: str | None = None
    start_s: float | None = None
    duration_s: float | None = None
    prepare_s: float | None = None
    post_s: float | None = None
    bytes: float | None = None
    descriptors: float | None = None
    error: str = ""
    evidence: Mapping[str, Grade] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowRecord:
    """What a source says of everything in [start_s, end_s) of one instance: differences of counters, means.

    `values` by name with the unit as suffix, as metrics are named. It cannot be split into requests.
    """

    source: str
    node: str | None
    engine: str | None
    start_s: float
    end_s: float
    values: Mapping[str, float]
    rank: str | None = None
    evidence: Mapping[str, Grade] = field(default_factory=dict)


Piece = RequestPiece | HandleTransfer | WindowRecord
