"""What the `hist` file of a trace event says (Documentation/trace/histogram.rst in the kernel)."""

import re
from dataclasses import dataclass, field

_ENTRY = re.compile(r"^\{ (?P<keys>.*?) \} hitcount:\s*(?P<hits>\d+)(?P<sums>.*)$")
_PAIR = re.compile(r"(?P<name>\w+):\s*(?P<log>~ 2\^)?(?P<value>-?\d+)")
_TOTAL = re.compile(r"^\s+(?P<name>Hits|Entries|Dropped): (?P<value>\d+)$")
_HEAD = re.compile(r"^# trigger info: hist:(?:name=\w+:)?keys=(?P<keys>[^:]+):")
_SIGN = 1 << 63


@dataclass(frozen=True, slots=True)
class Entry:
    """One row: the values of its keys, how often it was hit, and the sums of the values. A key with `.log2` has the
    exponent n for values above 2^(n-1) up to 2^n.
    """

    keys: dict[str, int]
    hits: int
    sums: dict[str, int]


@dataclass(slots=True)
class Table:
    """One histogram, with the names of its keys; `dropped` counts what found no room in it."""

    keys: tuple[str, ...]
    entries: list[Entry] = field(default_factory=list)
    dropped: int = 0


def parse(text: str) -> list[Table]:
    """Return the histograms of a file, one for each trigger; ValueError where a row is not as the kernel writes it."""
    tables: list[Table] = []
    for line in text.splitlines():
        if match := _HEAD.match(line):
            tables.append(Table(tuple(key.partition(".")[0] for key in match["keys"].split(","))))
        elif line.startswith("{"):
            match = _ENTRY.match(line)
            if match is None or not tables:
                raise ValueError(f"not a row of a histogram: {line[:80]!r}")
            tables[-1].entries.append(Entry(_pairs(match["keys"]), int(match["hits"]), _pairs(match["sums"])))
        elif (match := _TOTAL.match(line)) and match["name"] == "Dropped":
            if not tables:
                raise ValueError(f"totals of no histogram: {line[:80]!r}")
            tables[-1].dropped = int(match["value"])
    return tables


def _pairs(text: str) -> dict[str, int]:
    # The kernel prints negative keys as 64 bit without a sign.
    return {
        match["name"]: value - 2 * _SIGN if (value := int(match["value"])) >= _SIGN else value
        for match in _PAIR.finditer(text)
    }
