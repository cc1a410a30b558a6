"""What `kvdiag probe register` measured: how long one device takes to register and deregister memory."""

from dataclasses import dataclass
from typing import Literal

from kvdiag.model.document import Document
from kvdiag.model.probe_judgement import Judgement, Metric


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterSettings:
    """Everything but `DevicesRow` is measured on `device`, the first of `devices`."""

    device: str
    devices: tuple[str, ...]
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
class DevicesRow:
    """The same memory registered on so many devices, as an engine with several rails does: seconds until the last one
    has it, calling them one after another and in a thread each; and for deregistering one after another.
    """

    devices: int
    size_bytes: int
    one_after_another: Metric
    side_by_side: Metric
    deregister: Metric


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitRow:
    """`allowed` as the system states it (None: no limit), `reached` what was really registered before a refusal.

    memlock, max_mr_size and bar1 (the GPU memory that PCI devices can reach at once) are bytes, max_mr is a count.
    `status` is reached where the limit refused more, not_reached where the probe stopped first or something else
    refused, not_observable where nothing could be tried; `reason` says why, or what else is known.
    """

    name: Literal["memlock", "max_mr", "max_mr_size", "bar1"]
    allowed: int | None
    reached: int | None
    status: Literal["reached", "not_reached", "not_observable"]
    refusal: str | None
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterVerdict:
    """What registering `kv_bytes` per request would cost, and whether that may be in the request's path.

    `fixed_s` and `seconds_per_byte` come from a straight line through the touched base pages' medians (least squares,
    relative errors); `kv_s` is registration and deregistration; `share_of_wire` relates it to the time that the link
    needs for the bytes, None where the rate is unknown; without a budget nothing is then known of the path.
    """

    kv_bytes: int
    fixed_s: float
    seconds_per_byte: float
    kv_s: float
    kv_untouched_s: float | None
    share_of_wire: float | None
    on_path: Literal["allowed", "not_allowed", "undetermined"]
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterDocument(Document):
    """With `failure`, the line that the run ended in, everything is of what was measured before it."""

    schema: Literal["kvdiag.probe-register/1"]
    settings: RegisterSettings
    rows: tuple[RegisterRow, ...]
    regions: tuple[RegionsRow, ...]
    threads: tuple[ThreadsRow, ...]
    devices: tuple[DevicesRow, ...]
    limits: tuple[LimitRow, ...]
    verdict: RegisterVerdict
    judgements: tuple[Judgement, ...]
    missing: tuple[str, ...]
    failure: str | None = None
