"""Walks PromQL, and knows every series that may be asked for with its labels."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import promql_parser as promql

from dashboards.alerting.recordings import RECORDINGS
from dashboards.queries import SOURCES
from kvdiag_exporters.catalog import Metric, metrics
from kvdiag_exporters.engines import maps
from kvdiag_exporters.engines.metrics import BY_NAME

TARGET = {"job", "instance"}
_PARTS = ("_bucket", "_sum", "_count")


@dataclass(frozen=True)
class Selector:
    """A series that is asked for: its name, the labels it is chosen by, the functions and ranges around it."""

    name: str
    labels: frozenset[str]
    functions: tuple[str, ...]
    range_: str


def parsed(expr: str) -> Any:
    """Return the tree of an expression with Grafana's variables filled in; ValueError where it is none."""
    return promql.parse(expr.replace("$__rate_interval", "5m"))


def children(node: Any) -> list[Any]:
    found = []
    for name in ("lhs", "rhs", "expr", "param", "args", "vector_selector"):
        value = getattr(node, name, None)
        found += value if isinstance(value, list) else [] if value is None else [value]
    return found


def nodes(node: Any) -> Iterator[Any]:
    yield node
    for child in children(node):
        yield from nodes(child)


def selectors(node: Any, around: tuple[str, ...] = (), range_: str = "") -> Iterator[Selector]:
    if isinstance(node, promql.VectorSelector):
        yield Selector(
            node.name or "", frozenset(one.name for one in node.matchers.matchers), around, range_
        )  # fmt: skip
    if isinstance(node, promql.Call):
        around = (*around, node.func.name)
    if isinstance(node, promql.MatrixSelector):
        range_ = str(node.range)
    for child in children(node):
        yield from selectors(child, around, range_)


def grouped(node: Any) -> Iterator[tuple[set[str], set[str]]]:
    """Yield the labels that each aggregation keeps and the series below it."""
    for one in nodes(node):
        if isinstance(one, promql.AggregateExpr) and one.modifier is not None:
            yield set(one.modifier.labels), {below.name for below in selectors(one)}


@cache
def known() -> dict[str, frozenset[str]]:
    """Return the labels of every series of the catalogue, of the recordings and of the engines' name maps."""
    found: dict[str, frozenset[str]] = {"up": frozenset(TARGET)}
    for metric in metrics():
        found |= {name: frozenset({*metric.labels, *TARGET}) for name in exposed(metric)}
    for name in [one for one in found if one.endswith("_bucket")]:
        found[name] |= {"le"}
    found |= {one.name: frozenset(one.labels) for one in RECORDINGS}
    for source in maps.load():
        if source.source not in SOURCES:
            continue
        for row in source.series:
            kind = BY_NAME[row.metric].kind
            for name in row.names:
                ends = {"histogram": _PARTS, "counter": ("_total",), "gauge": ("",)}[kind]
                found |= {f"{name}{end}": frozenset({*row.kind_labels, *TARGET, "le"}) for end in ends}
    return found


def exposed(metric: Metric) -> list[str]:
    """Return the names of a metric's series."""
    return [f"{metric.name}{part}" for part in _PARTS] if metric.kind == "histogram" else [metric.name]
