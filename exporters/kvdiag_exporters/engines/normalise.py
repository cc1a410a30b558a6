"""From an engine's exposition to samples of the normalised metrics; what makes no sense is told, not passed on."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from prometheus_client.metrics_core import Metric as Family

from kvdiag_exporters.catalog import Buckets, Metric, Sample
from kvdiag_exporters.engines.exposition import Exposition, parse
from kvdiag_exporters.engines.maps import NameMap, Series, by_name, owner
from kvdiag_exporters.engines.metrics import combine

MOST_VALUES = 256
"""Label combinations of one metric from one engine; further ones are left off and told."""

Head = tuple[str, str, str]
"""node, engine, role"""


@dataclass(slots=True)
class Normalised:
    """`samples`; `sources` whose series were there; `unmapped` names by source; `broken` what was left off and why."""

    samples: list[Sample] = field(default_factory=list)
    sources: set[str] = field(default_factory=set)
    unmapped: dict[str, set[str]] = field(default_factory=dict)
    broken: list[str] = field(default_factory=list)


def normalise(text: str, head: Head) -> Normalised:
    """Return the samples of one exposition of the engine `head`; ValueError where it is no exposition."""
    exposition = parse(text)
    found = Normalised()
    _tell_others(exposition, found)
    present = {family.name for family in exposition.families}
    values: dict[tuple[Metric, tuple[str, ...]], float | Buckets] = {}
    for family in exposition.families:  # a name may come twice: as a counter with `_total`, and as a gauge
        one, row, place = by_name()[family.name]
        found.sources.add(one.source)
        if any(newer in present for newer in row.names[:place]) or row.unless in present:
            continue
        try:
            metric = row.target(family.type)
        except ValueError as error:
            found.broken.append(str(error))
            continue
        if metric is not None:
            for labels, value in _series(family, metric, one, row, head, found.broken):
                _add(values, metric, labels, value, found.broken)
    found.samples = [metric.sample(value, *labels) for (metric, labels), value in values.items()]
    return found


def _tell_others(exposition: Exposition, found: Normalised) -> None:
    for name in exposition.others:
        one = owner(name)
        assert one is not None
        found.sources.add(one.source)
        if one.ignores(name) is None:
            found.unmapped.setdefault(one.source, set()).add(name)


def _series(
    family: Family, metric: Metric, one: NameMap, row: Series, head: Head, broken: list[str]
) -> Iterable[tuple[tuple[str, ...], float | Buckets]]:
    if metric.kind != "histogram":
        for sample in family.samples:
            if sample.name.endswith("_created"):
                continue
            if math.isfinite(sample.value):
                yield _labels(sample.labels, one, row, head), sample.value * row.factor
        return
    grouped: dict[tuple[tuple[str, str], ...], list[tuple[str, float, float]]] = {}
    for sample in family.samples:
        key = tuple(sorted((name, value) for name, value in sample.labels.items() if name != "le"))
        bound = float(sample.labels["le"]) if "le" in sample.labels else math.nan
        grouped.setdefault(key, []).append((sample.name.removeprefix(family.name), bound, sample.value))
    _rejoin(grouped)
    for key, parts in grouped.items():
        try:
            buckets = _buckets(parts, row.factor)
        except ValueError as error:
            broken.append(f"{family.name}: {error}")
            continue
        yield _labels(dict(key), one, row, head), buckets


def _rejoin(grouped: dict[tuple[tuple[str, str], ...], list[tuple[str, float, float]]]) -> None:
    """Put a sum and a count that have lost their labels to the only buckets (the store client of Mooncake 0.3.13)."""
    bare = grouped.get((), [])
    if len(grouped) == 2 and {suffix for suffix, _, _ in bare} == {"_sum", "_count"}:
        (rest,) = (parts for key, parts in grouped.items() if key)
        if {suffix for suffix, _, _ in rest} == {"_bucket"}:
            rest += grouped.pop(())


def _buckets(parts: Iterable[tuple[str, float, float]], factor: float) -> Buckets:
    """Return the buckets, each counted alone; ValueError where the exposed ones contradict each other."""
    cumulative: dict[float, float] = {}
    total = sum_ = math.nan
    for suffix, bound, value in parts:
        if suffix == "_bucket":
            cumulative[bound] = value
        elif suffix == "_count":
            total = value
        elif suffix == "_sum":
            sum_ = value
    bounds = sorted(cumulative)
    counts = [cumulative[bound] for bound in bounds]
    if not bounds or not math.isinf(bounds[-1]):
        raise ValueError("a histogram without the bucket +Inf")
    if not all(math.isfinite(one) for one in (*counts, sum_)):
        raise ValueError("a histogram without a finite sum and counts")
    alone = [after - before for before, after in zip([0.0, *counts], counts, strict=False)]
    if min(alone) < 0 or (not math.isnan(total) and total != counts[-1]):
        raise ValueError(f"a histogram whose buckets contradict its count of {total:g}")
    return Buckets(tuple(bound * factor for bound in bounds[:-1]), tuple(int(one) for one in alone), sum_ * factor)


def _labels(found: Mapping[str, str], one: NameMap, row: Series, head: Head) -> tuple[str, ...]:
    values = [(name, found[name]) for name in one.rank if found.get(name)]
    rank = values[0][1] if len(one.rank) == 1 and values else ",".join(f"{name[:2]}{value}" for name, value in values)
    kind = [row.kind_of.get(head[2], row.kind), *(found.get(name, "") for name in row.kind_labels)]
    return (*head, one.source, rank, "_".join(part for part in kind if part), row.grain, row.evidence)


def _add(
    values: dict[tuple[Metric, tuple[str, ...]], float | Buckets],
    metric: Metric,
    labels: tuple[str, ...],
    value: float | Buckets,
    broken: list[str],
) -> None:
    """Put a value in, together with one that differs only in labels that are left off (models, agents)."""
    key = (metric, labels)
    before = values.get(key)
    if before is None:
        if sum(metric is other for other, _ in values) >= MOST_VALUES:
            message = f"{metric.name}: more than {MOST_VALUES} series"
            if message not in broken:
                broken.append(message)
            return
        values[key] = value
    elif isinstance(before, Buckets) and isinstance(value, Buckets):
        if before.bounds != value.bounds:
            broken.append(f"{metric.name}: series with different buckets; the first is kept")
            return
        counts = tuple(one + other for one, other in zip(before.counts, value.counts, strict=True))
        values[key] = Buckets(before.bounds, counts, before.sum + value.sum)
    else:
        assert not isinstance(before, Buckets)
        assert not isinstance(value, Buckets)
        values[key] = before + value if combine(metric) == "sum" else max(before, value)
