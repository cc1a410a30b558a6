"""One request's KV transfer as a row of a trace bundle: identity, pair, sizes and additive stages."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Grade = Literal["measured", "derived", "estimated", "absent"]
"""How a value is known: read from one clock or counter; computed from such values; an upper bound or a guess of the
source itself; not at all.
"""

STAGES = (
    "queue_s",
    "prefill_s",
    "admit_s",
    "pull_wait_s",
    "setup_s",
    "register_s",
    "handle_s",
    "post_s",
    "wire_s",
    "first_step_s",
    "pre_transfer_s",
    "transfer_s",
    "kv_wait_s",
)
"""Every stage column, in the order a request passes them; coarser sources fill the last three, not the finer ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferRecord:
    """Seconds, bytes and counts; None means "not observed", never zero. Stages present add up to `ttft_s`.

    `evidence` grades the columns that are not plainly measured, `missing` says in a line each what the record lacks
    and why, `sources` names what it was joined from; all three are empty where one program wrote the whole row.
    """

    request_id: str
    arrival_s: float
    ttft_s: float | None = None
    prefill_node: str | None = None
    decode_node: str | None = None
    prompt_tokens: float | None = None
    uncached_tokens: float | None = None
    turn: int | None = None
    queue_s: float | None = None
    prefill_s: float | None = None
    admit_s: float | None = None
    pull_wait_s: float | None = None
    setup_s: float | None = None
    register_s: float | None = None
    handle_s: float | None = None
    post_s: float | None = None
    wire_s: float | None = None
    first_step_s: float | None = None
    pre_transfer_s: float | None = None
    transfer_s: float | None = None
    kv_wait_s: float | None = None
    bytes: float | None = None
    descriptors: float | None = None
    batch_tokens: float | None = None
    batch_requests: float | None = None
    direction: str | None = None
    output_tokens: float | None = None
    trace_id: str | None = None
    evidence: Mapping[str, Grade] = field(default_factory=dict)
    missing: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()

    def grade(self, column: str) -> Grade:
        """Return how a column's value is known; "absent" where there is none."""
        return "absent" if getattr(self, column) is None else self.evidence.get(column, "measured")

    def stage(self, name: str) -> float | None:
        """Return the seconds of one of STAGES, or None where it was not observed."""
        value: float | None = getattr(self, name)
        return value
