"""Findings that are waived: taken out of the verdict, but shown with the reason and the day the waiver ends."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import date

from kvdiag.checks.base import Failed, Judged
from kvdiag.checks.first_cause import group
from kvdiag.model.finding import Finding
from kvdiag.model.waiver import Waiver


@dataclass(frozen=True, slots=True)
class Waived:
    """A finding and the waiver that took it out."""

    finding: Finding
    waiver: Waiver


@dataclass(frozen=True, slots=True)
class Applied:
    """`judged` as before without the waived findings (a check may be left with none); `notes` one line each."""

    judged: tuple[Judged, ...]
    waived: tuple[Waived, ...]
    notes: tuple[str, ...]


def apply(
    judged: Sequence[Judged], waivers: Iterable[Waiver], today: date, known: Collection[str] | None = None
) -> Applied:
    """Take out what a valid waiver covers, with the findings that follow from it; note the waivers that expired.

    `known` are the codes of all checks: a waiver of none of them is noted too.

    An expired waiver takes out nothing: its finding is back.
    """
    waivers = tuple(waivers)
    valid = [waiver for waiver in waivers if today <= waiver.expires]
    waived: list[Waived] = []
    for item in group(judged):
        cause = _covering(valid, item.cause)
        for finding in (item.cause, *item.consequences):
            found = cause or _covering(valid, finding)
            if found is not None:
                waived.append(Waived(finding, found))
    gone = {id(item.finding) for item in waived}
    kept = tuple(
        replace(item, outcome=Failed(tuple(finding for finding in item.outcome.findings if id(finding) not in gone)))
        if isinstance(item.outcome, Failed)
        else item
        for item in judged
    )
    back = [finding for item in kept if isinstance(item.outcome, Failed) for finding in item.outcome.findings]
    notes = tuple(
        f"the waiver of {waiver.code} ({waiver.reason}) expired on {waiver.expires}: the finding is back"
        for waiver in waivers
        if waiver.expires < today and _covers_any(waiver, back)
    )
    unknown = () if known is None else (waiver for waiver in waivers if waiver.code.upper() not in known)
    notes += tuple(
        f"the waiver of {waiver.code} names no check; kvdiag explain --list has them all" for waiver in unknown
    )
    return Applied(kept, tuple(waived), notes)


def _covering(waivers: Iterable[Waiver], finding: Finding) -> Waiver | None:
    return next((waiver for waiver in waivers if waiver.covers(finding)), None)


def _covers_any(waiver: Waiver, findings: Iterable[Finding]) -> bool:
    return any(waiver.covers(finding) for finding in findings)
