"""What the texts of several probes share: tables, figures with their intervals, proofs and verdicts."""

from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from kvdiag.derive.amounts import amount, seconds
from kvdiag.model.probe import TransportProof
from kvdiag.model.probe_judgement import Judgement, Metric

__all__ = ["MIB", "Columns", "incomplete", "interval", "judgements", "proof", "seconds", "table"]
MIB = 1 << 20
_PROOF = {"proved": "proved", "contradicted": "CONTRADICTED", "not_observable": "not observable here"}


def table(columns: Iterable[str], rows: Iterable[Iterable[str]]) -> "Columns":
    """Return a plain table, every column right-aligned but the first; in a terminal too narrow for it a list."""
    return Columns(tuple(columns), [tuple(row) for row in rows])


class Columns:
    """A table that loses no figure: where a line is longer than the terminal, each row is a paragraph of its own."""

    def __init__(self, head: tuple[str, ...], body: list[tuple[str, ...]]) -> None:
        self._head, self._body = head, body

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        lines = [self._head, *self._body]
        widths = [max(len(row[place]) for row in lines) for place in range(len(self._head))]
        if options.no_wrap or sum(widths) + 2 * (len(widths) - 1) <= options.max_width:
            for number, row in enumerate(lines):
                pairs = zip(row[1:], widths[1:], strict=True)
                cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in pairs)]
                yield Text("  ".join(cells), "" if number else "bold", no_wrap=True, overflow="ignore")
            return
        for row in self._body:
            named = zip(self._head[1:], row[1:], strict=True)
            yield Text(f"{self._head[0]} {row[0]}: " + ", ".join(f"{head} {cell}" for head, cell in named))


def interval(one: Metric, scale: float = 1.0, form: str = ".2f") -> str:
    """Return `value (low … high)`, or the value alone where there is no interval."""
    value = f"{one.value * scale:{form}}"
    if one.low is None or one.high is None:
        return value
    return f"{value} ({one.low * scale:{form}} … {one.high * scale:{form}})"


def proof(name: str, one: TransportProof) -> list[Text]:
    """Return a transport's proof: its verdict, then the counts behind it."""
    lines = [Text(f"{name}: carried as named: {_PROOF[one.status]}")]
    for item in one.evidence:
        bound = f" ({item.threshold})" if item.threshold else ""
        lines.append(Text(f"  {item.name}: {item.value}{bound} [{item.source}]"))
    return lines + [Text(f"  {reason}") for reason in one.missing]


def incomplete(failure: str | None, metrics: Iterable[Metric] = (), asked: int = 0) -> list[Text]:
    """Return the mark of a run that failed before its end, with how many rounds its figures are of, and of how many."""
    if not failure:
        return []
    done = sorted({one.samples for one in metrics})
    if not done:
        which = "these are the rounds before that"
    else:
        count = f"{done[0]}" if len(done) == 1 else f"{done[0]} to {done[-1]}"
        which = f"these are {count} of {asked} rounds"
    return [Text(f"INCOMPLETE: the run failed; {which}", "bold red")]


def judgements(found: Iterable[Judgement]) -> list[Text]:
    """Return one line for every verdict, and one for all that one and the same reason keeps from being decided."""
    words = {"met": "met", "missed": "MISSED", "undetermined": "cannot judge"}
    styles = {"met": "", "missed": "bold red", "undetermined": "yellow"}
    groups: dict[tuple[object, ...], list[Judgement]] = {}
    for one in found:
        open_ = one.status == "undetermined"
        groups.setdefault((one.status, one.rule, one.reason) if open_ else (id(one),), []).append(one)
    lines = []
    for one, *others in groups.values():
        said = f"{one.metric} {amount(one.value, one.unit)}"
        if others:
            said = f"{len(others) + 1} figures, {one.metric} to {others[-1].metric}"
        elif one.limit is not None:
            said += f", limit {amount(one.limit, one.unit)}"
        lines.append(Text(f"{words[one.status]}: {one.rule}: {said} ({one.reason})", style=styles[one.status]))
    return lines
