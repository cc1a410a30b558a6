"""Samples as Prometheus's text format, quickly: the text that prometheus-client makes, byte for byte.

Nearly all of a scrape's cost is writing the same names and labels again; here each series' head is kept from scrape to
scrape. OpenMetrics, which carries exemplars, is written by prometheus-client itself.
"""

from collections.abc import Iterable, Sequence

from prometheus_client.utils import floatToGoString

from kvdiag_exporters.catalog import Buckets, Metric, Sample

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

MOST_KEPT = 50_000
"""Heads that are kept; then all are forgotten at once, as those of series that have gone are never asked for."""

_Key = tuple[str, tuple[str, ...]]


class TextFormat:
    """Writes samples; not for several threads at once."""

    def __init__(self) -> None:
        self._heads: dict[_Key, str] = {}
        self._buckets: dict[tuple[_Key, tuple[float, ...]], tuple[str, ...]] = {}
        self._help: dict[str, str] = {}

    def render(self, samples: Iterable[Sample]) -> bytes:
        """Return the samples grouped by metric, sorted by name, series in the order given."""
        if len(self._heads) + len(self._buckets) > MOST_KEPT:
            self._heads.clear()
            self._buckets.clear()
        grouped: dict[str, tuple[Metric, list[Sample]]] = {}
        for sample in samples:
            name = sample[0].name
            group = grouped.get(name)
            if group is None:
                grouped[name] = group = (sample[0], [])
            group[1].append(sample)
        parts: list[str] = []
        for name in sorted(grouped):
            metric, found = grouped[name]
            parts.append(self._help.get(name) or self._describe(metric))
            if metric.kind == "histogram":
                for sample in found:
                    self._histogram(sample, parts)
                continue
            heads = self._heads
            for _, labels, value in found:
                assert not isinstance(value, Buckets)
                head = heads.get((name, labels)) or self._head(metric, labels)
                parts.append(f"{head} {_number(value)}\n")
        return "".join(parts).encode()

    def _describe(self, metric: Metric) -> str:
        text = metric.help.replace("\\", r"\\").replace("\n", r"\n")
        found = self._help[metric.name] = f"# HELP {metric.name} {text}\n# TYPE {metric.name} {metric.kind}\n"
        return found

    def _head(self, metric: Metric, labels: tuple[str, ...]) -> str:
        found = self._heads[metric.name, labels] = metric.name + _braces(metric.labels, labels)
        return found

    def _histogram(self, sample: Sample, parts: list[str]) -> None:
        metric, labels, value = sample
        assert isinstance(value, Buckets)
        key = ((metric.name, labels), value.bounds)
        heads = self._buckets.get(key)
        if heads is None:
            bounds = (*(str(bound) for bound in value.bounds), "+Inf")
            heads = self._buckets[key] = (
                *(f"{metric.name}_bucket{_braces((*metric.labels, 'le'), (*labels, bound))}" for bound in bounds),
                f"{metric.name}_count{_braces(metric.labels, labels)}",
                f"{metric.name}_sum{_braces(metric.labels, labels)}",
            )
        total = 0
        for place, count in enumerate(value.counts):
            total += count
            parts.append(f"{heads[place]} {_number(total)}\n")
        # As prometheus-client: with negative bounds a sum says nothing.
        if not value.bounds or value.bounds[0] >= 0:
            parts.append(f"{heads[-2]} {_number(total)}\n{heads[-1]} {_number(value.sum)}\n")


def _braces(names: Sequence[str], values: Sequence[str]) -> str:
    if not names:
        return ""
    pairs = sorted(zip(names, values, strict=True))
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in pairs) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _number(value: float) -> str:
    if 0 < value < 1e6 and (whole := int(value)) == value:  # most values: counts
        return f"{whole}.0"
    text: str = floatToGoString(value)  # type: ignore[no-untyped-call]
    return text
