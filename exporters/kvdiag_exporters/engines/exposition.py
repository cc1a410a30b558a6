"""Reading a Prometheus exposition: only the families that a map names are parsed, the names of all others are kept."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache

from prometheus_client.metrics_core import Metric as Family
from prometheus_client.parser import text_string_to_metric_families

from kvdiag_exporters.engines.maps import by_name, owner

MOST_LINES = 200_000
"""More lines are no engine's metrics: a vLLM engine exposes about a thousand per data-parallel rank."""

_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_SUFFIXES = ("_bucket", "_count", "_sum", "_total", "_created")


@dataclass(frozen=True, slots=True)
class Exposition:
    """`families` those of the maps, names without `_total`; `others` names with a source's prefix that no map names."""

    families: tuple[Family, ...]
    others: frozenset[str] = field(default_factory=frozenset)


def parse(text: str) -> Exposition:
    """Return what the maps know of a text exposition; ValueError where it is none or a line of it is broken."""
    wanted: list[str] = []
    others: set[str] = set()
    typed: dict[str, str] = {}
    series = 0
    for line in _lines(text):
        if line.startswith("#"):
            words = line.split(None, 3)
            if len(words) == 4 and words[1] == "TYPE":
                typed[words[2]] = words[3]
                if _base(words[2], words[3]) in by_name():
                    wanted.append(line)
            continue
        match = _NAME.match(line)
        if not match:
            raise ValueError(f"no Prometheus exposition: the line {line[:40]!r} begins with no metric's name")
        series += 1
        family = _family(match[0], typed)
        if family in by_name():
            wanted.append(line)
        elif owner(family) is not None and not family.endswith("_created"):
            others.add(family)
    if not series:
        raise ValueError("no Prometheus exposition: it holds no series")
    try:
        families = tuple(text_string_to_metric_families("\n".join(wanted) + "\n"))
    except ValueError as error:
        raise ValueError(f"no Prometheus exposition: {str(error)[:120] or 'a line is broken'}") from None
    return Exposition(families, frozenset(others))


def _lines(text: str) -> Iterator[str]:
    for number, line in enumerate(text.splitlines()):
        if number >= MOST_LINES:
            raise ValueError(f"more than {MOST_LINES} lines")
        if line and not line.isspace():
            yield line.strip()


def _base(name: str, exposed_type: str) -> str:
    return name.removesuffix("_total") if exposed_type == "counter" else name


def _family(name: str, typed: dict[str, str]) -> str:
    """Return the family of a sample's name, by the types told before it."""
    if name in typed:
        return _base(name, typed[name])
    for suffix in _SUFFIXES:
        stem = name.removesuffix(suffix)
        if stem != name and typed.get(stem) in ("histogram", "summary", "counter"):
            return stem
    return _untyped(name)


@lru_cache(maxsize=4096)
def _untyped(name: str) -> str:
    """Return the family of a name without a type: the mapped one that it belongs to, else the name."""
    stem = name.removesuffix("_total")
    return stem if stem in by_name() else name
