"""A frame as lines of text that fit a terminal of any size; pure, so that what is seen can be tested."""

import textwrap
from collections.abc import Sequence
from typing import Any

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from kvdiag.model.top import ExporterState, TopDocument
from kvdiag.top import units
from kvdiag.top.state import HELP, VIEWS, State
from kvdiag.top.tables import CRITICAL, TABLES, Column, Table, arranged

_GAP = 2
_MOST_TROUBLE = 4
_LEAST_WIDTH = 20
_LEAST_NAME = 8
_SENTENCE = 20
"""Texts that may not be shortened below this are sentences, others names."""
_LONG_NAME = 24
"""Cells that names keep as long as there is another column to leave out."""
OVERVIEW = ("pairs", "engines", "NICs", "registration", "queue pairs", "findings")
_KEYS = "q quit  h help  p pause  / filter  s sort"
_LEGEND = f"{units.NONE} no traffic  {units.UNSEEN} not observed"


def harmless(text: str) -> str:
    r"""Return the text on one line, what cannot be printed made visible (`\x1b`): labels steer no terminal."""
    return "".join(one if one.isprintable() else f"\\x{ord(one):02x}" for one in text)


def draw(
    document: TopDocument, state: State, *, width: int, height: int | None, interval_s: float, note: str = ""
) -> list[Text]:
    """Return the lines of a frame: at most `height` (None: as many as there are), each at most `width` cells."""
    width = max(width, _LEAST_WIDTH)
    if state.help:
        return _cut(_help(width), height)
    top = _header(document, state, width, interval_s, short=height is not None and height < 12)
    bottom = [] if height is None or height < 8 else [_footer(state, width, note)]
    room = None if height is None else max(0, height - len(top) - len(bottom))
    if state.view == VIEWS[0]:
        body = _overview(document, state, width, room)
    elif state.view == VIEWS[-1]:
        body = _findings(document, state, width, room)
    else:
        body = _table(TABLES[state.view], document, state, width, room)
    if room is not None:
        body = [*body[:room], *([Text()] * (room - len(body)))]
    return _cut([*top, *body, *bottom], height)


def columns(state: State) -> int:
    """Return how many columns the view can be sorted by."""
    return len(TABLES[state.view].columns) if state.view in TABLES else 0


def _cut(lines: list[Text], height: int | None) -> list[Text]:
    return lines if height is None else lines[:height]


def _header(document: TopDocument, state: State, width: int, interval_s: float, *, short: bool) -> list[Text]:
    answering = sum(one.state in ("fresh", "stale") for one in document.exporters)
    windows = [one.window_s for one in document.exporters if one.window_s]
    over = "rates come with the second reading"
    if windows:
        over = f"rates over {max(windows):.{0 if max(windows) >= 10 else 1}f} s"
    clock = document.time[11:19] + " UTC"
    parts = [("kvdiag top ", "bold"), (f" {answering} of {len(document.exporters)} exporters answer", "")]
    if answering < len(document.exporters):
        parts[1] = (parts[1][0], CRITICAL)
    critical = sum(row.severity == "critical" for row in document.findings)
    if critical:
        parts.insert(1, (f" {critical} critical ", CRITICAL))
    more = [(f" · {over} · every {interval_s:g} s · {clock}", "")]
    if state.paused:
        more.insert(0, ("  PAUSED ", "reverse"))
    lines = [_line(width, *parts, *more)]
    troubled = [one for one in document.exporters if one.trouble or one.state != "fresh" or one.restarts]
    most = 1 if short else _MOST_TROUBLE
    lines += [_line(width, *_trouble(one)) for one in troubled[:most]]
    if len(troubled) > most:
        lines.append(_line(width, (f"  … and {len(troubled) - most} more exporters in trouble", "dim")))
    if document.causes and not short:
        lines.append(_line(width, ("TTFT varies with  ", "dim"), (_causes(document), "bold")))
    if not short:
        tabs: list[tuple[str, str]] = []
        for place, name in enumerate(VIEWS):
            tabs += [(f" {place + 1} {name} ", "reverse" if name == state.view else ""), (" ", "")]
        if sum(cell_len(text) for text, _ in tabs) > width:
            tabs = [(f" {VIEWS.index(state.view) + 1}/{len(VIEWS)} {state.view} ", "reverse"), ("  Tab: next", "dim")]
        lines.append(_line(width, *tabs))
    return lines


def _causes(document: TopDocument) -> str:
    """Return the causes with their shares: first those that a finding names, then the rest by share."""
    named = {row.code for row in document.findings}
    order = sorted(document.causes.items(), key=lambda one: (one[0] not in named, one[0] == "unexplained"))
    return ", ".join(f"{cause} {units.share(value)}" for cause, value in order[:4])


def _trouble(one: ExporterState) -> list[tuple[str, str]]:
    style = {"failed": "bold red", "stale": "yellow"}.get(one.state, "")
    told = "; ".join(one.trouble)
    if one.state == "waiting":
        told = "not answered yet"
    age = "no data yet" if one.data_age_s is None else f"data {units.age(one.data_age_s)} old"
    again = f"restarted {one.restarts} time{'s' if one.restarts > 1 else ''}" if one.restarts else ""
    shown = one.state == "failed" or (one.state == "stale" and not told)
    what = "; ".join(part for part in (told, age if shown else "", again) if part)
    return [("  ", ""), (harmless(one.url), "bold"), (f"  {harmless(what)}", style)]


def _footer(state: State, width: int, note: str) -> Text:
    if state.typing:
        return _line(
            width, ("filter: ", "bold"), (harmless(state.filter), ""), ("█", ""), ("  Enter keeps, Esc clears", "dim")
        )
    parts = [(f"filter “{harmless(state.filter)}”  ", "bold")] if state.filter else []
    return _line(width, *parts, (note or _KEYS, "dim"), (f"   {_LEGEND}", "dim"))


def _help(width: int) -> list[Text]:
    lines = [_line(width, ("kvdiag top: keys", "bold")), Text()]
    lines += [_line(width, (f"  {keys:<14}", "bold"), (what, "")) for keys, what in HELP]
    lines += [
        Text(),
        _line(width, (f"  {units.NONE} nothing was counted in the window; {units.UNSEEN} nobody counts it. ", "")),
        _line(width, ("  Dim rows are of exporters that do not answer. Any key goes back.", "")),
    ]
    return lines


def _overview(document: TopDocument, state: State, width: int, room: int | None) -> list[Text]:
    """Return every table that has rows, each with as many of them as there is room for, the first tables first."""
    names = [
        name
        for name in OVERVIEW
        if TABLES[name].rows(document) or name == "findings" or (name == "pairs" and not document.engines)
    ]
    rows = {
        name: arranged(TABLES[name], document, state.sort.get(name), name in state.reverse, state.filter)
        for name in names
    }
    given = _shares({name: max(1, len(found)) for name, found in rows.items()}, room)
    lines: list[Text] = []
    for name, most in given.items():
        found, table = rows[name], TABLES[name]
        hidden = len(found) - most
        title = table.title + (f"  {most} of {len(found)}, all with {VIEWS.index(name) + 1}" if hidden > 0 else "")
        if lines:
            lines.append(Text())
        if not found:
            lines.append(_line(width, (table.title, "bold cyan"), (f"  {_why_none(table, document, state)}", "dim")))
            continue
        lines.append(_line(width, (table.title, "bold cyan"), (title[len(table.title) :], "dim")))
        lines += _grid(table, found[:most], width, None, False)
    return lines


def _shares(wanted: dict[str, int], room: int | None) -> dict[str, int]:
    """Return how many rows of each table fit: one each in order, then one more each while there is room."""
    if room is None:
        return wanted
    given: dict[str, int] = {}
    for name in wanted:
        cost = 3 + bool(given)  # title, head and a row; a line between
        if room < cost:
            break
        given[name], room = 1, room - cost
    while room > 0 and any(given[name] < wanted[name] for name in given):
        for name in given:
            if room > 0 and given[name] < wanted[name]:
                given[name], room = given[name] + 1, room - 1
    return given


def _table(table: Table, document: TopDocument, state: State, width: int, room: int | None) -> list[Text]:
    sort = state.sort.get(state.view)
    found = arranged(table, document, sort, state.view in state.reverse, state.filter)
    if not found:
        return [_line(width, (_why_none(table, document, state), "dim"))]
    shown = found
    if room is not None:
        page = max(1, room - 2)
        first = min(state.offset, max(0, len(found) - page))
        shown = found[first : first + page]
    lines = _grid(table, shown, width, table.order if sort is None else sort, state.view in state.reverse)
    if len(shown) < len(found):
        lines.append(_line(width, (f"rows {first + 1} to {first + len(shown)} of {len(found)}  ↑ ↓", "dim")))
    return lines


def _findings(document: TopDocument, state: State, width: int, room: int | None) -> list[Text]:
    """Return each finding whole, in lines of its own: how grave, which, where, what it saw, what to do."""
    table = TABLES[VIEWS[-1]]
    found = arranged(table, document, state.sort.get(state.view), state.view in state.reverse, state.filter)
    if not found:
        return [_line(width, (_why_none(table, document, state), "dim"))]
    lines: list[Text] = []
    first = 0 if room is None else min(state.offset, len(found) - 1)
    for row in found[first:]:
        severity, code, where, what, action = (harmless(column.text(row)) for column in table.columns)
        base = "dim" if row.stale else ""
        style = base or table.columns[0].style(row)
        block = [_line(width, (severity, style), ("  ", ""), (code, "bold"), (f"  {where}", base))]
        for text in (what, f"→ {action}" if action else ""):
            block += [_line(width, (f"  {part}", base)) for part in textwrap.wrap(text, max(20, width - 4))]
        lines += [*([Text()] if lines else []), *block]
    if room is not None and len(lines) > room:
        lines = [*lines[: max(1, room - 1)], _line(width, (f"{len(found)} findings  ↑ ↓", "dim"))]
    return lines


def _why_none(table: Table, document: TopDocument, state: State) -> str:
    if table.rows(document):
        return f"no row contains “{harmless(state.filter)}”; Esc clears the filter"
    if not any(one.data_age_s is not None for one in document.exporters):
        return "no data yet"
    return table.empty


def _grid(table: Table, rows: Sequence[Any], width: int, sort: int | None, reverse: bool) -> list[Text]:
    """Return the head and the rows; columns that do not fit are left out, the least important first."""
    texts = [[harmless(column.text(row)) for column in table.columns] for row in rows]
    titles = [column.title for column in table.columns]
    if sort is not None:
        titles[sort] += "↓" if (not table.columns[sort].left) != reverse else "↑"
    sizes = [
        max(cell_len(titles[place]), *(cell_len(line[place]) for line in texts)) for place in range(len(table.columns))
    ]
    kept = _fitting(table.columns, sizes, width)
    lines = [_cells(table.columns, titles, [""] * len(titles), sizes, kept, "underline dim")]
    for row, line in zip(rows, texts, strict=True):
        styles = [column.style(row) for column in table.columns]
        lines.append(_cells(table.columns, line, styles, sizes, kept, "dim" if row.stale else ""))
    return lines


def _fitting(columns: Sequence[Column], sizes: list[int], width: int) -> list[int]:
    """Return the places of the columns that fit, and shorten in `sizes` those that may be."""
    kept = list(range(len(columns)))

    def over() -> int:
        return sum(sizes[one] for one in kept) + _GAP * (len(kept) - 1) - width

    def shorten(least: int) -> None:
        for place in sorted(kept, key=lambda one: -sizes[one]):
            if columns[place].width and over() > 0:
                sizes[place] = max(min(max(columns[place].width, least), sizes[place]), sizes[place] - over())

    shorten(_LONG_NAME)
    while over() > 0:
        place = max(kept, key=lambda one: (columns[one].rank, one))
        if columns[place].rank == 0:
            break
        kept.remove(place)
    shorten(0)
    sizes[kept[0]] = max(min(_LEAST_NAME, sizes[kept[0]]), sizes[kept[0]] - max(0, over()))
    while over() > 0 and len(kept) > 1:
        kept.pop()
    return kept


def _cells(
    columns: Sequence[Column], texts: list[str], styles: list[str], sizes: list[int], kept: list[int], base: str
) -> Text:
    line = Text(style=base, no_wrap=True, overflow="crop")
    for number, place in enumerate(kept):
        text, size = texts[place], sizes[place]
        if cell_len(text) > size:
            text = _shortened(text, size, middle=columns[place].width < _SENTENCE)
        pad = " " * (size - cell_len(text))
        line.append(" " * _GAP if number else "")
        line.append(text + pad if columns[place].left or place == 0 else pad + text, styles[place])
    return line


def _shortened(text: str, size: int, *, middle: bool) -> str:
    """Return the text in so many cells: names differ at their ends, sentences are read from their beginning."""
    tail = (size - 1) * 2 // 3 if middle else 0
    end = ""
    for one in reversed(text):
        if cell_len(one + end) > tail:
            break
        end = one + end
    return set_cell_size(text, size - 1 - cell_len(end)) + "…" + end


def _line(width: int, *parts: tuple[str, str]) -> Text:
    line = Text(no_wrap=True, overflow="ellipsis")
    for text, style in parts:
        line.append(text, style)
    line.truncate(width, overflow="ellipsis")
    return line
