"""What a metric is, and the catalogue of all of them: each is defined once, beside the collector that measures it."""

import importlib
import pkgutil
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

Kind = Literal["counter", "gauge", "histogram"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """How the recorder writes a metric into a trace bundle: its name there, its unit, and the factor to that unit.

    `part` says which number of a histogram: its sum or its count. A `fallback` is recorded only where no metric with
    a smaller number gives the node this name, one that is `only_with` another metric only where the node has that one.
    `where` names labels and the values of them that are recorded.
    """

    name: str
    unit: str
    scale: float = 1.0
    part: Literal["value", "sum", "count"] = "value"
    fallback: int = 0
    only_with: str = ""
    where: tuple[tuple[str, tuple[str, ...]], ...] = ()


class Exemplar(NamedTuple):
    """One value of a bucket, when it was seen (seconds of the epoch), and what it was; OpenMetrics allows the names
    and values of its labels 128 characters together.
    """

    labels: tuple[tuple[str, str], ...]
    value: float
    time_s: float


@dataclass(frozen=True, slots=True)
class Buckets:
    """A histogram's value: `counts[i]` samples up to `bounds[i]` and above the one before, the last above all.

    `exemplars` has the latest of each bucket, or is empty.
    """

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    sum: float
    exemplars: tuple[Exemplar | None, ...] = ()


class Sample(NamedTuple):
    """One series at one instant; `labels` in the order of the metric's label names."""

    metric: "Metric"
    labels: tuple[str, ...]
    value: float | Buckets


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """`name` is the whole exposed name; `unit` is a base unit ("seconds", "bytes", "ratio") or empty for plain counts.

    Label values are bounded: nodes, devices, ports, engines, roles, stages; never request ids or process ids.
    """

    name: str
    kind: Kind
    help: str
    unit: str = ""
    labels: tuple[str, ...] = ()
    recorded: tuple[Recorded, ...] = ()

    def sample(self, value: float | Buckets, *labels: str) -> Sample:
        """Return a sample of this metric; ValueError where the number of label values is not that of the names."""
        if len(labels) != len(self.labels):
            raise ValueError(f"{self.name} has the labels {self.labels}, not the values {labels}")
        return Sample(self, labels, value)


def metrics() -> tuple[Metric, ...]:
    """Return every metric of every collector and derivation, sorted by name; ValueError where one is defined twice.

    In OpenMetrics a counter's family goes without `_total`, so that `a` and `a_total` are the same one.
    """
    import kvdiag_exporters.collectors
    import kvdiag_exporters.derived

    found: dict[str, Metric] = {}
    for package in (kvdiag_exporters.collectors, kvdiag_exporters.derived):
        for module_info in pkgutil.iter_modules(package.__path__):
            module = importlib.import_module(f"{package.__name__}.{module_info.name}")
            defined: Sequence[Metric] = getattr(module, "METRICS", ())
            for metric in defined:
                family = metric.name.removesuffix("_total")
                if family in found:
                    raise ValueError(f"{metric.name} is defined twice, the second time in {module.__name__}")
                found[family] = metric
    return tuple(sorted(found.values(), key=lambda one: one.name))
