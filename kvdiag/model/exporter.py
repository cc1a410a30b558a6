"""The exporter's document: one collection, with how each collector fared."""

from dataclasses import dataclass
from typing import Literal

from kvdiag.model.document import Document
from kvdiag.model.finding import Finding


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectorReport:
    """`error` is empty where the collector worked; `missing` says what it could not observe."""

    name: str
    success: bool
    duration_s: float
    error: str
    missing: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class HistogramReport:
    """`counts[i]` samples up to `bounds[i]` and above the one before, and one more count for those above all."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    sum: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleReport:
    """One series: `value` of a counter or gauge (null: not finite), or `histogram`."""

    name: str
    labels: dict[str, str]
    value: float | None = None
    histogram: HistogramReport | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExporterDocument(Document):
    schema: Literal["kvdiag.exporter/1"] = "kvdiag.exporter/1"
    collectors: tuple[CollectorReport, ...]
    samples: tuple[SampleReport, ...]
    findings: tuple[Finding, ...] = ()
