"""PromQL that the dashboards are made of: rates, quantiles, and the engines' own series by the name maps."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from kvdiag_exporters.engines import maps
from kvdiag_exporters.engines.maps import Series
from kvdiag_exporters.engines.metrics import BY_NAME

INTERVAL = "$__rate_interval"
JOB = 'job=~"$job"'
ENGINE = f'{JOB}, engine=~"$engine"'
BETWEEN = 'prefill_node=~"$src", decode_node=~"$dst"'
PAIR = f"{JOB}, {BETWEEN}"
PATH = f'{JOB}, node=~"$src|$dst"'
PROBED = f'{JOB}, node=~"$src|$dst", peer=~"$src|$dst"'
PORT = f'{JOB}, node=~"$node", device=~"$device", port=~"$port"'
DEVICE = f'{JOB}, node=~"$node", device=~"$device"'
NODE = f'{JOB}, node=~"$node"'
WIRE = 'stage=~"wire|transfer"'
"""The stage of a record that is the transfer; sources that see no finer stages fill `transfer`, never both."""

SOURCES = {"vllm": "vLLM", "sglang": "SGLang", "dynamo": "Dynamo", "nixl": "NIXL"}
"""Sources whose own series are shown where no kvdiag exporter reads them, and what people call them."""

_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*(?=[{[])")


@dataclass(frozen=True, slots=True)
class Query:
    """One line of a panel: what is asked, and the legend (Grafana's `{{label}}`)."""

    expr: str
    legend: str


def metric_names(exprs: Sequence[str]) -> list[str]:
    """Return the metrics that expressions name, each once, in order; every selector has braces here."""
    return list(dict.fromkeys(name for expr in exprs for name in _NAME.findall(expr)))


def rate(counter: str, matchers: str, by: str = "") -> str:
    """Return the summed rate per second of a counter, by the labels given."""
    return f"sum{_by(by)} (rate({counter}{{{matchers}}}[{INTERVAL}]))"


def quantile(q: float, histogram: str, matchers: str, by: str = "") -> str:
    """Return a quantile of a histogram, by the labels given, in its unit; NaN where there was no traffic."""
    buckets = rate(f"{histogram}_bucket", matchers, f"{by}, le" if by else "le")
    return f"histogram_quantile({q}, {buckets})"


def carriers(matchers: str) -> list[Query]:
    """Return what carried the KV bytes of each node and direction; one line each, by name."""
    return [Query(f"kvdiag_transfer_transport{{{matchers}}} == 1", "{{node}} {{direction}} {{transport}}")]


def mean(histogram: str, matchers: str, by: str = "") -> str:
    """Return the mean of a histogram, by the labels given, in its unit; nothing where there was no traffic."""
    return f"{rate(f'{histogram}_sum', matchers, by)} / ({rate(f'{histogram}_count', matchers, by)} > 0)"


def first_of(*exprs: str) -> str:
    """Return the first of several expressions without labels that is a number; nothing where none is."""
    return " or ".join(f"({expr} >= 0)" for expr in exprs)


def own_rows(metric: str, kind: str = "", source: str = "") -> list[tuple[str, Series]]:
    """Return source and row of the name maps that lead to a `kvdiag_engine_*` metric; `kind` is a pattern, or any."""
    return [
        (one.source, row)
        for one in maps.load()
        if one.source in SOURCES and source in ("", one.source)
        for row in one.series
        if row.metric == metric and re.fullmatch(kind or ".*", row.kind)
    ]


def own_rate(metric: str, kind: str = "", source: str = "", part: str = "") -> list[Query]:
    """Return the engines' own counters (or `part` of their histograms) behind a metric, per second and instance."""
    found = []
    for name, row in own_rows(metric, kind, source):
        by = ", ".join(("instance", *row.kind_labels))
        suffix = f"_{part}" if part else "_total"
        one = rate_of_any([f"{alias}{suffix}" for alias in row.names], by)
        found.append(Query(_scaled(one, row, factor=part != "count"), _legend(name, row)))
    return found


def own_level(metric: str, kind: str = "", source: str = "") -> list[Query]:
    """Return the engines' own gauges behind a metric, summed by instance."""
    found = []
    for name, row in own_rows(metric, kind, source):
        by = ", ".join(("instance", *row.kind_labels))
        one = f"sum{_by(by)} ({' or '.join(f'{alias}{{{JOB}}}' for alias in row.names)})"
        found.append(Query(_scaled(one, row), _legend(name, row)))
    return found


def own_quantile(q: float, metric: str, kind: str = "", source: str = "") -> list[Query]:
    """Return a quantile of the engines' own histograms behind a metric, by instance and in its base unit."""
    found = []
    for name, row in own_rows(metric, kind, source):
        by = ", ".join(("instance", *row.kind_labels))
        buckets = rate_of_any([f"{alias}_bucket" for alias in row.names], f"{by}, le")
        one = f"histogram_quantile({q}, {buckets})"
        found.append(Query(_scaled(one, row), f"{_legend(name, row)} p{q * 100:g}"))
    return found


def unless_read(queries: Sequence[Query], metric: str) -> list[Query]:
    """Return the engines' own queries so that they are silent where a kvdiag exporter serves the same metric."""
    series = f"{metric}_count" if BY_NAME[metric].kind == "histogram" else metric
    return [Query(f"({one.expr}) unless on () {series}{{{JOB}}}", one.legend) for one in queries]


def rate_of_any(names: Sequence[str], by: str) -> str:
    """Return the summed rate of a series by its newest name, or an older one."""
    return f"sum{_by(by)} ({' or '.join(f'rate({name}{{{JOB}}}[{INTERVAL}])' for name in names)})"


def _by(labels: str) -> str:
    return f" by ({labels})" if labels else ""


def _scaled(expr: str, row: Series, *, factor: bool = True) -> str:
    return expr if not factor or row.factor == 1.0 else f"{expr} * {row.factor:g}"


def _legend(source: str, row: Series) -> str:
    labels = "".join(f" {{{{{label}}}}}" for label in row.kind_labels)
    return f"{{{{instance}}}} {SOURCES[source]} {row.kind.replace('_', ' ')}{labels}".replace("  ", " ")
