"""Samples in the forms of prometheus-client: text and OpenMetrics, as the scraper asks for."""

from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar

from kvdiag_exporters.catalog import Buckets, Metric, Sample
from kvdiag_exporters.collectors.exporter_self import outcome_samples
from kvdiag_exporters.scraper import Collection, Scraper


class ScrapeCollector(Collector):
    """Gives prometheus-client a collection whenever it asks."""

    def __init__(self, scraper: Scraper, monotonic_s: Callable[[], float]) -> None:
        self._scraper = scraper
        self._monotonic_s = monotonic_s

    def collect(self) -> Iterator[Family]:
        collection = self._scraper.collect()
        yield from families(all_samples(collection, self._monotonic_s()))


def registry(scraper: Scraper, monotonic_s: Callable[[], float]) -> CollectorRegistry:
    """Return a registry of its own that holds nothing but this exporter's metrics."""
    found = CollectorRegistry(auto_describe=False)
    found.register(ScrapeCollector(scraper, monotonic_s))
    return found


def all_samples(collection: Collection, now_s: float) -> Iterator[Sample]:
    """Yield the collection's samples and those about the collectors; `now_s` is the monotonic time of asking."""
    yield from collection.samples
    yield from outcome_samples(collection.outcomes, now_s)


def exposed(samples: Iterable[Sample]) -> str:
    """Return the samples in Prometheus's text format."""
    found = CollectorRegistry(auto_describe=False)
    found.register(_Fixed(families(samples)))
    return generate_latest(found).decode()


class _Fixed(Collector):
    def __init__(self, found: list[Family]) -> None:
        self._found = found

    def collect(self) -> list[Family]:
        return self._found


def families(samples: Iterable[Sample]) -> list[Family]:
    """Return the samples grouped by metric, sorted by name, series in the order given."""
    grouped: dict[str, tuple[Metric, list[Sample]]] = {}
    for sample in samples:
        grouped.setdefault(sample.metric.name, (sample.metric, []))[1].append(sample)
    return [_family(*grouped[name]) for name in sorted(grouped)]


def _family(metric: Metric, samples: list[Sample]) -> Family:
    if metric.kind == "histogram":
        histogram = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels, unit=metric.unit)
        for _, labels, value in samples:
            assert isinstance(value, Buckets)
            histogram.add_metric(labels, _cumulative(value), value.sum)
        return histogram
    family = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    found = family(metric.name, metric.help, labels=metric.labels, unit=metric.unit)
    for _, labels, value in samples:
        assert not isinstance(value, Buckets)
        found.add_metric(labels, value)
    return found


def _cumulative(value: Buckets) -> list[tuple[str, float] | tuple[str, float, Exemplar]]:
    total = 0.0
    found: list[tuple[str, float] | tuple[str, float, Exemplar]] = []
    exemplars = value.exemplars or (None,) * len(value.counts)
    bounds = (*(str(bound) for bound in value.bounds), "+Inf")
    for bound, count, one in zip(bounds, value.counts, exemplars, strict=True):
        total += count
        if one is None:
            found.append((bound, total))
        else:
            found.append((bound, total, Exemplar(dict(one.labels), one.value, one.time_s)))
    return found
