"""One collection as the document that `kvdiag exporter --format json` prints."""

import math

from kvdiag.model.exporter import CollectorReport, ExporterDocument, HistogramReport, SampleReport
from kvdiag.report.json import head
from kvdiag_exporters.catalog import Buckets, Sample
from kvdiag_exporters.scraper import Collection


def build_document(collection: Collection) -> ExporterDocument:
    """Return the document of a collection; values that are not finite (no limit) are null."""
    fields = head("kvdiag.exporter/1", time_s=collection.time_s)
    return ExporterDocument(
        version=fields["version"],
        host=fields["host"],
        time=fields["time"],
        collectors=tuple(
            CollectorReport(
                name=name,
                success=outcome.error == "",
                duration_s=outcome.duration_s,
                error=outcome.error,
                missing=outcome.missing,
            )
            for name, outcome in collection.outcomes.items()
        ),
        samples=tuple(_sample(sample) for sample in collection.samples),
        findings=collection.findings,
    )


def _sample(sample: Sample) -> SampleReport:
    labels = dict(zip(sample.metric.labels, sample.labels, strict=True))
    value = sample.value
    if isinstance(value, Buckets):
        histogram = HistogramReport(bounds=value.bounds, counts=value.counts, sum=value.sum)
        return SampleReport(name=sample.metric.name, labels=labels, histogram=histogram)
    return SampleReport(name=sample.metric.name, labels=labels, value=value if math.isfinite(value) else None)
