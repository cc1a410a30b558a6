"""The name maps: which series of which engine is what, as data in `maps/SOURCE.toml`; presence decides."""

import fnmatch
import tomllib
from functools import cache
from importlib.resources import files
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from kvdiag_exporters.catalog import Metric
from kvdiag_exporters.engines.metrics import BY_NAME, base_unit

UNITS: dict[str, tuple[str, float]] = {
    "": ("", 1.0),
    "s": ("seconds", 1.0),
    "ms": ("seconds", 1e-3),
    "us": ("seconds", 1e-6),
    "B": ("bytes", 1.0),
    "MiB": ("bytes", 2.0**20),
    "B/s": ("bytes_per_second", 1.0),
    "GB/s": ("bytes_per_second", 1e9),
    "GiB/s": ("bytes_per_second", 2.0**30),
    "ratio": ("ratio", 1.0),
}
"""Units of the sources: the base unit of each and the factor to it. SGLang's "GB/s" is GiB/s, Dynamo's is 10^9."""

_Version = Annotated[str, Meta(pattern=r"^\d+(\.\d+)+$")]


class Series(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One row of a map.

    `names`: the newest first, the first present wins. `metric` for what it is, `gauge` instead where the source exposes
    a gauge ("" leaves that off). `kind` with the values of `kind_labels` after it; `kind_of` by the engine's role.
    `unit` is the source's own, base units unless given. `unless` names a series beside which this one is left off.
    """

    names: Annotated[tuple[str, ...], Meta(min_length=1)]
    metric: str
    grain: str
    gauge: str | None = None
    kind: str = ""
    kind_of: dict[str, str] = {}
    kind_labels: tuple[str, ...] = ()
    unit: str | None = None
    evidence: Literal["measured", "derived", "estimated"] = "measured"
    since: _Version | None = None
    until: _Version | None = None
    unless: str | None = None

    def target(self, exposed_type: str) -> Metric | None:
        """Return the metric for a series of the exposed type; None where it is left off, ValueError where none fits."""
        wanted = BY_NAME[self.metric]
        if exposed_type == wanted.kind or (exposed_type in ("unknown", "untyped") and wanted.kind != "histogram"):
            return wanted
        if exposed_type == "gauge" and self.gauge is not None:
            return BY_NAME[self.gauge] if self.gauge else None
        raise ValueError(f"{self.names[0]} is a {exposed_type}, not a {wanted.kind}")

    @property
    def factor(self) -> float:
        """The factor from the source's unit to the metric's."""
        return 1.0 if self.unit is None else UNITS[self.unit][1]


class NameMap(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One source: what its names begin with, which labels tell ranks, its rows, and names left out by reason.

    A name that matches none of `concerns` has nothing to do with KV caches, and none of its business here.
    """

    source: str
    prefixes: Annotated[tuple[str, ...], Meta(min_length=1)]
    series: tuple[Series, ...]
    concerns: tuple[str, ...] = ("*",)
    rank: tuple[str, ...] = ()
    ignored: dict[str, tuple[str, ...]] = {}

    def ignores(self, name: str) -> str | None:
        """Return why a name is left out; None where it should be mapped."""
        if not any(fnmatch.fnmatchcase(name, pattern) for pattern in self.concerns):
            return "nothing to do with KV caches"
        for reason, patterns in self.ignored.items():
            if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns):
                return reason
        return None


@cache
def load() -> tuple[NameMap, ...]:
    """Return every map of the package, sorted by source; ValueError names map and row where one contradicts itself."""
    folder = files("kvdiag_exporters.engines") / "maps"
    found = []
    for path in sorted(folder.iterdir(), key=lambda one: one.name):
        if path.name.endswith(".toml"):
            one = msgspec.convert(tomllib.loads(path.read_text(encoding="utf-8")), NameMap)
            for row in one.series:
                _check(one.source, row)
            found.append(one)
    return tuple(found)


def _check(source: str, row: Series) -> None:
    for name in (row.metric, row.gauge):
        if not name:
            continue
        if name not in BY_NAME:
            raise ValueError(f"{source}: {row.names[0]} leads to {name}, which no metric is called")
        base = base_unit(BY_NAME[name])
        if row.unit is not None and UNITS[row.unit][0] != base:
            raise ValueError(f"{source}: {row.names[0]} is in {row.unit}, but {name} in {base or 'a plain count'}")
    if not row.kind and not row.kind_labels:
        raise ValueError(f"{source}: {row.names[0]} has no kind")


@cache
def by_name() -> dict[str, tuple[NameMap, Series, int]]:
    """Return map, row and place among the row's names (0: the newest) by exposed name without `_total`."""
    found: dict[str, tuple[NameMap, Series, int]] = {}
    for one in load():
        for row in one.series:
            for place, name in enumerate(row.names):
                if name in found:
                    raise ValueError(f"{one.source}: {name} is mapped twice")
                found[name] = (one, row, place)
    return found


@cache
def owner(name: str) -> NameMap | None:
    """Return the map whose prefix the name has, the longest prefix where several fit."""
    fitting = [(len(prefix), one) for one in load() for prefix in one.prefixes if name.startswith(prefix)]
    return max(fitting, key=lambda pair: pair[0])[1] if fitting else None
