"""What `kvdiag diagnose` answers: the verdict, the ranked causes, the exact split over stages, and what was missing."""

from dataclasses import dataclass
from typing import Literal

from kvdiag.model.document import Document
from kvdiag.model.finding import Evidence


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """`cause` is an id of the taxonomy when `status` is "cause", else None; `reason` is one sentence with numbers.

    `confidence` (0-1) is that of the statement made; docs/diagnose.md says how it is computed.
    """

    status: Literal["cause", "no_change", "abstain"]
    cause: str | None
    confidence: float
    reason: str
    severity: Literal["critical", "warning"] | None = None
    collect_next: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AttributedCause:
    """Seconds per request of the incident beyond the baseline, and the share of TTFT variance, with 90 % intervals.

    Without a baseline: seconds beyond expectation, with wider intervals.

    The shares of all causes, "unexplained" among them, and the baseline's own variation add up to 1.
    `pairs` ("prefill → decode") are those that stand out among the pairs of their nodes, `devices` ("node device")
    those on which a counter of the evidence rose more than on the node's other ones; both empty where none does.
    """

    id: str
    share_of_variance: float
    share_low: float
    share_high: float
    excess_mean_s: float
    excess_mean_low_s: float
    excess_mean_high_s: float
    excess_p50_s: float
    excess_p99_s: float
    confidence: float
    nodes: tuple[str, ...]
    evidence: tuple[Evidence, ...]
    action: str
    pairs: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StageShare:
    """One additive stage: share of Var(TTFT) = (within-period covariance + covariance of period means) / Var(TTFT).

    Shares of all stages add up to 1; a negative one has its meaning in `note`. 90 % block-bootstrap intervals.
    `mean_expected_s` is what the stage should have taken where there is no baseline.
    """

    stage: str
    share_of_variance: float
    share_low: float
    share_high: float
    share_within: float
    share_between: float
    mean_baseline_s: float | None
    mean_incident_s: float
    excess_mean_s: float | None
    excess_low_s: float | None
    excess_high_s: float | None
    note: str = ""
    mean_expected_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Period:
    """TTFT of the requests that arrived in [start_s, end_s]: seconds, and seconds squared.

    `seconds` is less than end_s - start_s where the other period lies in between.
    """

    start_s: float
    end_s: float
    seconds: float
    requests: int
    mean_s: float
    p50_s: float
    p99_s: float
    variance_s2: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSummary:
    """What was examined; `sampled` is the recorded share of requests, `granularity` of the stages full|typical|coarse.

    `split` says how baseline and incident were told apart; `missing` and `notes` are one line each.
    """

    requests: int
    sampled: float | None
    granularity: str
    split: str
    missing: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step of how the verdict was reached, with its numbers, for an engineer to check by hand."""

    title: str
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """`baseline` is None where the whole period had to be explained; `causes` are ranked by excess seconds."""

    verdict: Verdict
    causes: tuple[AttributedCause, ...]
    stages: tuple[StageShare, ...]
    baseline: Period | None
    incident: Period | None
    data: DataSummary
    steps: tuple[Step, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DiagnosisDocument(Document):
    """`kvdiag diagnose --format json`: the diagnosis of one bundle, read from the folder `origin`."""

    schema: Literal["kvdiag.diagnose/1"]
    origin: str
    verdict: Verdict
    causes: tuple[AttributedCause, ...]
    stages: tuple[StageShare, ...]
    baseline: Period | None
    incident: Period | None
    data: DataSummary
    steps: tuple[Step, ...]
