"""The text form of a preflight: the verdict, the findings by severity, what is waived, hidden and passed."""

from collections.abc import Sequence

from rich.text import Text

from kvdiag.model.finding import Evidence, Severity
from kvdiag.model.preflight import CheckResult, PreflightDocument, PreflightFinding, PreflightVerdict

_STYLE = {Severity.CRITICAL: "bold red", Severity.WARNING: "bold yellow", Severity.INFO: "bold cyan"}
_REPEATED = 3
"""So many checks each give the reason that they share, so that a line can be looked for by its check."""
_WIDEST = 44
"""Columns of evidence are aligned up to this width; a longer value pushes its own line only."""


def render(document: PreflightDocument, *, verbose: bool = False) -> Text:
    """Return the whole text; `verbose` adds what passed and what does not apply here."""
    text = Text()
    text.append(_headline(document.verdict), "bold").append(f" ({document.host})\n")
    for engine in document.engines:
        text.append(f"{engine}\n")
    for finding in document.findings:
        _finding(text, finding, named=bool(document.peers))
    if document.waived:
        text.append("\nWaived:\n", "bold")
        for item in document.waived:
            text.append(f"  {item.finding.code} {item.finding.summary}\n    until {item.expires}: {item.reason}\n")
    for note in document.notes:
        text.append("\nNote: ", "bold").append(f"{note}\n")
    _results(text, document, "not_observable", "Not observable here, so not judged whether")
    if verbose:
        _results(text, document, "passed", "Passed:")
        _results(text, document, "not_applicable", "Not applicable here, whether")
    if document.findings:
        text.append(f"\nMore on a finding: kvdiag explain {document.findings[0].code}\n")
    return text


def _headline(verdict: PreflightVerdict) -> str:
    grave = [
        _count(verdict.critical, "critical", "critical"),
        _count(verdict.warning, "warning", "warnings"),
        _count(verdict.info, "note", "notes"),
    ]
    found = ", ".join(part for part in grave if part) or "no findings"
    if verdict.explained:
        found += f" ({_count(verdict.explained, 'more finding follows', 'more findings follow')} from these)"
    if verdict.status == "undetermined":
        seen = "too little" if verdict.passed else "nothing"
        found = f"{found}; {seen} else could be examined" if verdict.info else f"{seen} could be examined"
    rest = f"{verdict.passed} passed; {verdict.not_observable} not observable here"
    if verdict.waived:
        rest += f"; {verdict.waived} waived"
    return f"{found}; {rest}" + (f"; {verdict.not_applicable} not applicable" if verdict.not_applicable else "")


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}" if number else ""


def _finding(text: Text, finding: PreflightFinding, *, named: bool) -> None:
    indent = "  " if finding.explained_by else ""
    text.append("\n" if not finding.explained_by else "")
    text.append(f"{indent}{finding.severity.name} {finding.code} ", _STYLE[finding.severity])
    text.append(f"{finding.host}: " if named and finding.host else "").append(f"{finding.summary}\n")
    if finding.explained_by:
        text.append(f"{indent}  follows from {finding.explained_by}; look again once that is put right\n")
    for line in _table(finding.evidence):
        text.append(f"{indent}  {line}\n")
    if not finding.explained_by:
        text.append(f"{indent}  Do: ", "bold").append(f"{finding.action}\n")


def _table(evidence: Sequence[Evidence]) -> list[str]:
    """Return the evidence in columns: name, value with what was expected, and where it was read."""
    cells = [
        (f"{item.name}:", item.value + (f" (expected: {item.threshold})" if item.threshold else ""), f"[{item.source}]")
        for item in evidence
    ]
    widths = [min(_WIDEST, max((len(row[column]) for row in cells), default=0)) for column in (0, 1)]
    return [f"{name:<{widths[0]}} {value:<{widths[1]}}  {source}" for name, value, source in cells]


def _results(text: Text, document: PreflightDocument, status: str, heading: str) -> None:
    """Add the checks of a status; a reason that many of them share is said once, above them."""
    chosen: list[CheckResult] = [result for result in document.checks if result.status == status]
    if chosen:
        text.append(f"\n{heading}\n", "bold")
        for detail in dict.fromkeys(result.detail for result in chosen):
            alike = [f"{result.code} {result.title}" for result in chosen if result.detail == detail]
            if len(alike) <= _REPEATED:
                text.append("".join(f"  {name}: {detail}\n" for name in alike))
            else:
                text.append("".join((f"  {detail}:\n", *(f"    {name}\n" for name in alike))))
