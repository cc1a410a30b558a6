"""What `kvdiag probe register` measured: how long one device takes to register and deregister memory."""

from dataclasses import dataclass
from typing import Literal

from kvdiag.model.document import Document
from kvdiag.model.probe_judgement import Judgement, Metric


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterSettings:
    device: str
    sizes: tuple[int, ...]
    pages: tuple[str, ...]
    regions: tuple[int, ...]
    threads: tuple[int, ...]
    rounds: int
    kv_bytes: int
    budget_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterRow:
    """`register` is the first use of fresh memory, `again` the same memory registered once more."""

    pages: str
    touched: bool
    size_bytes: int
    register: Metric
    again: Metric
    deregister: Metric


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionsRow:
    """The largest size cut into equal regions: seconds for registering all of them, and for deregistering."""

    regions: int
    region_bytes: int
    register: Metric
    deregister: Metric


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadsRow:
    """Registrations and deregistrations per second by all threads together, each with memory of its own."""

    threads: int
    size_bytes: int
    per_second: Metric


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitRow:
    """`allowed` as the system states it (None: no limit), `reached` what was really registered before a refusal.

    `status` is reached where the limit refused more, not_reached where the probe stopped first.
    """

    name: Literal["memlock", "max_mr", "max_mr_size"]
    allowed: int | None
    reached: int
    status: Literal["reached", "not_reached"]
    refusal: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterVerdict:
    """What registering `kv_bytes` per request would cost, and whether that may be in the request's path.

    `fixed_s` and `seconds_per_byte` come from a straight line through the touched base pages' medians (least squares,
    relative errors); `kv_s` is registration and deregistration; `share_of_wire` relates it to the time that the link
    needs for the bytes, None where the rate is unknown.
    """

    kv_bytes: int
    fixed_s: float
    seconds_per_byte: float
    kv_s: float
    kv_untouched_s: float | None
    share_of_wire: float | None
    on_path: Literal["allowed", "not_allowed"]
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterDocument(Document):
    schema: Literal["kvdiag.probe-register/1"]
    settings: RegisterSettings
    rows: tuple[RegisterRow, ...]
    regions: tuple[RegionsRow, ...]
    threads: tuple[ThreadsRow, ...]
    limits: tuple[LimitRow, ...]
    verdict: RegisterVerdict
    judgements: tuple[Judgement, ...]
    missing: tuple[str, ...]
