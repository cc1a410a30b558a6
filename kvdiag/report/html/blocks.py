"""What a page consists of: plain data that the template lays out, escaping every text."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

State = Literal["critical", "warning", "good", "unknown"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Headline:
    """The verdict: one sentence, the number beside it, and what to do next (`actions`, one line each)."""

    kind: ClassVar[str] = "headline"
    state: State
    word: str
    sentence: str
    figure: str = ""
    figure_note: str = ""
    actions: tuple[str, ...] = ()
    actions_title: str = "Do next"


@dataclass(frozen=True, slots=True)
class Tile:
    label: str
    value: str
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiles:
    kind: ClassVar[str] = "tiles"
    tiles: tuple[Tile, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """`spec` is Vega-Lite; `summary` says in words what it shows, for those who do not see it; `least_px` is the width
    below which the chart scrolls instead of shrinking.
    """

    kind: ClassVar[str] = "chart"
    title: str
    summary: str
    spec: dict[str, Any]
    note: str = ""
    least_px: int = 0
    wide: bool = False


@dataclass(frozen=True, slots=True)
class Cell:
    """`order` is what the column is sorted by (default: the text); `state` marks a badge; `strong` is set in bold;
    `link` is the id of a place in the page, `note` stands small below the text.
    """

    text: str
    order: float | str | None = None
    state: State | None = None
    strong: bool = False
    code: bool = False
    link: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    numeric: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Sortable by every column where `sortable`; the rows come in the order that matters."""

    kind: ClassVar[str] = "table"
    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    note: str = ""
    sortable: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Empty:
    """What cannot be shown, and why."""

    kind: ClassVar[str] = "empty"
    title: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Lines:
    kind: ClassVar[str] = "lines"
    title: str
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """One cause or finding: where, evidence, what to do."""

    kind: ClassVar[str] = "card"
    state: State
    badge: str
    title: str
    facts: tuple[tuple[str, str], ...] = ()
    evidence: Table | None = None
    action: str = ""
    reference: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Folded:
    """Details that open on demand, and in print."""

    kind: ClassVar[str] = "folded"
    title: str
    blocks: "tuple[Block, ...]"


Block = Headline | Tiles | Chart | Table | Empty | Lines | Card | Folded


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    title: str
    blocks: tuple[Block, ...]
    lead: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Everything about one input; `headline` comes first, and its first words stand in the index."""

    title: str
    subtitle: str
    headline: Headline
    sections: tuple[Section, ...] = field(default=())


def cell(text: object, order: float | str | None = None) -> Cell:
    """Return a plain cell."""
    return Cell(str(text), order)


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[Cell]], note: str = "") -> Table:
    """Return a table; a column whose name begins with `#` is numeric."""
    heads = tuple(Column(name.removeprefix("#"), name.startswith("#")) for name in columns)
    return Table(title=title, columns=heads, rows=tuple(tuple(row) for row in rows), note=note)
