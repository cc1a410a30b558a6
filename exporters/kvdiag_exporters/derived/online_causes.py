"""Why TTFT varies now: the shares and the verdict of the attribution over the last while, as metrics and a finding."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from kvdiag.model.diagnosis import Diagnosis
from kvdiag.model.finding import Evidence, Finding, Severity
from kvdiag_exporters.catalog import Metric, Sample
from kvdiag_exporters.collectors.base import Setup
from kvdiag_exporters.derived.base import Derived

if TYPE_CHECKING:
    from kvdiag_exporters.records.attribution import Attribution
    from kvdiag_exporters.records.service import Records

CAUSE_SHARE = Metric(
    name="kvdiag_ttft_variance_share",
    kind="gauge",
    labels=("cause",),
    help="Share of the variance of TTFT that a cause explains, in the window of the attribution.",
)
STAGE_SHARE = Metric(
    name="kvdiag_ttft_stage_variance_share",
    kind="gauge",
    labels=("stage",),
    help="Share of the variance of TTFT that a stage has, exactly; negative where it is short when others are long.",
)
REQUESTS = Metric(
    name="kvdiag_attribution_requests", kind="gauge", help="Requests in the window of the last attribution."
)
DURATION = Metric(
    name="kvdiag_attribution_duration_seconds",
    kind="gauge",
    unit="seconds",
    help="How long the last attribution took.",
)
TIME = Metric(
    name="kvdiag_attribution_timestamp_seconds",
    kind="gauge",
    unit="seconds",
    help="When the last attribution began, in seconds of the epoch; absent before the first.",
)
CONFIDENCE = Metric(
    name="kvdiag_attribution_confidence_ratio",
    kind="gauge",
    unit="ratio",
    labels=("status",),
    help="Confidence in the last verdict, by its status: cause, no_change or abstain.",
)

METRICS = (CAUSE_SHARE, STAGE_SHARE, REQUESTS, DURATION, TIME, CONFIDENCE)
_SEVERITIES = {"critical": Severity.CRITICAL, "warning": Severity.WARNING}


class OnlineCausesDerivation:
    """Also keeps what the collections say of counters, which the attribution needs beside the records."""

    def __init__(self, setup: Setup, records: "Records") -> None:
        self._setup, self._records = setup, records

    def derive(self, samples: Sequence[Sample], monotonic_s: float) -> Derived:
        """Return the newest result; nothing of it where there is none yet."""
        clock = self._setup.clock
        self._records.counters.observe(samples, clock.wall_s() - (clock.monotonic_s() - monotonic_s))
        last = self._records.attribution.last
        if last is None:
            return Derived()
        derived = Derived(samples=list(_run_samples(last)))
        if last.diagnosis is not None:
            derived.samples += _samples(last.diagnosis)
            derived.findings += _findings(last.diagnosis, self._setup.node)
        return derived


def _run_samples(last: "Attribution") -> Iterator[Sample]:
    yield REQUESTS.sample(float(last.requests))
    yield DURATION.sample(last.duration_s)
    yield TIME.sample(last.time_s)


def _samples(found: Diagnosis) -> Iterator[Sample]:
    for cause in found.causes:
        yield CAUSE_SHARE.sample(cause.share_of_variance, cause.id)
    for stage in found.stages:
        yield STAGE_SHARE.sample(stage.share_of_variance, stage.stage.removesuffix("_s"))
    yield CONFIDENCE.sample(found.verdict.confidence, found.verdict.status)


def _findings(found: Diagnosis, node: str) -> Iterator[Finding]:
    verdict = found.verdict
    if verdict.status != "cause" or verdict.cause is None:
        return
    cause = next((one for one in found.causes if one.id == verdict.cause), None)
    evidence = cause.evidence if cause is not None else ()
    nodes = ", ".join(cause.nodes) if cause is not None else ""
    yield Finding(
        code=verdict.cause,
        severity=_SEVERITIES.get(verdict.severity or "", Severity.WARNING),
        subject=nodes or "ttft",
        summary=verdict.reason,
        evidence=(
            *evidence,
            Evidence(name="confidence", value=f"{verdict.confidence:.2f}", source="attribution of the last requests"),
        ),
        action=cause.action if cause is not None else "record a trace bundle and run kvdiag diagnose on it",
        host=node,
    )


def create(setup: Setup) -> OnlineCausesDerivation | None:
    return None if setup.records is None else OnlineCausesDerivation(setup, setup.records)
