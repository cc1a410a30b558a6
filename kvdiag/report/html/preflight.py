"""A preflight as blocks: the verdict, every finding gravest first with its action, and what was not judged."""

from kvdiag.model.finding import Severity
from kvdiag.model.preflight import CheckResult, PreflightDocument, PreflightFinding
from kvdiag.report.html.blocks import (
    Block,
    Card,
    Cell,
    Empty,
    Folded,
    Headline,
    Lines,
    Part,
    Section,
    State,
    cell,
    table,
)
from kvdiag.report.html.diagnosis import evidence_table
from kvdiag.report.html.units import count, moment

_STATE: dict[Severity, State] = {Severity.CRITICAL: "critical", Severity.WARNING: "warning", Severity.INFO: "unknown"}
_WORD: dict[str, tuple[State, str]] = {
    "critical": ("critical", "CRITICAL"),
    "warning": ("warning", "WARNING"),
    "passed": ("good", "PASSED"),
    "undetermined": ("unknown", "COULD NOT DETERMINE"),
}
_NAMES = {
    "passed": "passed",
    "failed": "failed",
    "waived": "waived",
    "not_applicable": "not applicable",
    "not_observable": "not observable here",
}
MOST_ACTIONS = 3


def part(document: PreflightDocument) -> Part:
    """Return everything about one preflight."""
    findings = sorted(document.findings, key=lambda one: one.severity.rank)
    title = f"Preflight of {document.host}"
    against = f" against {', '.join(document.peers)}" if document.peers else ""
    sections = [Section(title="Findings", blocks=_findings(document, findings))]
    if document.waived:
        rows = [
            (
                Cell(one.finding.code, strong=True),
                cell(one.finding.host),
                cell(one.finding.summary),
                cell(one.expires),
                cell(one.reason),
            )
            for one in document.waived
        ]
        waived = table("Waived findings", ("code", "host", "finding", "until", "why"), rows)
        sections.append(Section(title="Waived", blocks=(waived,)))
    sections.append(Section(title="What was checked", blocks=_checks(document)))
    return Part(
        title=title,
        subtitle=f"kvdiag preflight of {moment(document.time)}{against}",
        headline=_headline(document, findings),
        sections=tuple(sections),
    )


def _headline(document: PreflightDocument, findings: list[PreflightFinding]) -> Headline:
    verdict = document.verdict
    state, word = _WORD[verdict.status]
    causes = [one for one in findings if one.explained_by is None]
    counted = [
        count(number, one, many)
        for number, one, many in (
            (verdict.critical, "critical finding", "critical findings"),
            (verdict.warning, "warning", "warnings"),
            (verdict.info, "note", "notes"),
        )
        if number
    ]
    follow = f", and {count(verdict.explained, 'more finding that follows', 'more findings that follow')} from these"
    sentence = f"{', '.join(counted)}{follow if verdict.explained else ''}" if counted else "No findings"
    if verdict.status == "undetermined":
        sentence += "; too little could be examined"
    if causes and causes[0].severity is not Severity.INFO:
        sentence += f". First: {causes[0].code}, {causes[0].summary}"
    actions = tuple(f"{one.code}: {one.action}" for one in causes if one.severity is not Severity.INFO)[:MOST_ACTIONS]
    if not actions:
        quiet = "nothing: go on with kvdiag probe between the nodes that will serve"
        actions = ("see what was not observable, and why",) if verdict.status == "undetermined" else (quiet,)
    judged = verdict.passed + sum(one.status == "failed" for one in document.checks)
    return Headline(
        state=state,
        word=word,
        sentence=sentence,
        figure=f"{verdict.passed} of {judged}",
        figure_note=f"checks passed; {verdict.not_observable} not observable here, "
        f"{verdict.not_applicable} not applicable",
        actions=actions,
    )


def _findings(document: PreflightDocument, findings: list[PreflightFinding]) -> tuple[Block, ...]:
    if not findings:
        return (Empty(title="No findings", reason=f"{document.verdict.passed} checks passed"),)
    rows = [
        (
            Cell(one.severity.value, order=one.severity.rank, state=_STATE[one.severity]),
            Cell(one.code, strong=True),
            cell(one.host),
            cell(one.subject),
            cell(one.summary),
            cell(f"follows from {one.explained_by}" if one.explained_by else "–"),
        )
        for one in findings
    ]
    heads = ("severity", "code", "host", "subject", "finding", "explained")
    cards = tuple(_card(one) for one in findings if one.explained_by is None)
    follow = tuple(_card(one) for one in findings if one.explained_by is not None)
    folded: tuple[Block, ...] = ()
    if follow:
        folded = (Folded(title=f"{count(len(follow), 'finding')} explained by those above", blocks=follow),)
    return (table("Findings, gravest first", heads, rows), *cards, *folded)


def _card(one: PreflightFinding) -> Card:
    facts = [("host", one.host)] if one.host else []
    facts += [("subject", one.subject)] if one.subject else []
    facts += [("devices", ", ".join(one.devices))] if one.devices else []
    facts += [("follows from", one.explained_by)] if one.explained_by else []
    return Card(
        state=_STATE[one.severity],
        badge=one.severity.value,
        title=f"{one.code}: {one.summary}",
        facts=tuple(facts),
        evidence=evidence_table(one.evidence) if one.evidence else None,
        action=one.action,
        reference=f"kvdiag explain {one.code}",
    )


def _checks(document: PreflightDocument) -> tuple[Block, ...]:
    blocks: list[Block] = []
    if document.engines:
        blocks.append(Lines(title="Engines", lines=document.engines))
    if document.notes:
        blocks.append(Lines(title="Notes", lines=document.notes))
    unseen = [one for one in document.checks if one.status == "not_observable"]
    if unseen:
        blocks.append(
            table("Not observable here, so not judged", ("code", "check", "why"), [_row(one) for one in unseen])
        )
    if document.missing:
        rows = [(cell(one.host), cell(one.part), cell(one.reason)) for one in document.missing]
        blocks.append(Folded(title=f"{count(len(rows), 'part')} of the hosts that could not be observed",
                             blocks=(table("Not observed", ("host", "part", "why"), rows),)))  # fmt: skip
    every = [
        (Cell(one.code, strong=True), cell(_NAMES[one.status]), cell(one.title), cell(one.detail))
        for one in document.checks
    ]
    checks = table("Checks", ("code", "result", "check", "detail"), every)
    blocks.append(Folded(title=f"All {len(every)} checks", blocks=(checks,)))
    return tuple(blocks)


def _row(one: CheckResult) -> tuple[Cell, ...]:
    return (Cell(one.code, strong=True), cell(one.title), cell(one.detail))
