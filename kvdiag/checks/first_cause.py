"""Which finding explains which, as the checks themselves declare it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from kvdiag.checks.base import Check, Failed, Judged
from kvdiag.model.finding import Finding, Severity


@dataclass(frozen=True, slots=True)
class Group:
    """A first cause, and the findings that it explains; both in the order of `Finding.sort_key`."""

    cause: Finding
    consequences: tuple[Finding, ...]

    @property
    def sort_key(self) -> tuple[int, tuple[int, str, str, str, str]]:
        """As grave as its gravest member, whatever the cause alone is worth."""
        rank = min(finding.severity.rank for finding in (self.cause, *self.consequences))
        return (rank, self.cause.sort_key)


def group(judged: Iterable[Judged]) -> tuple[Group, ...]:
    """Return the findings as groups, gravest first; each finding is in exactly one of them."""
    judged = tuple(judged)
    checks = {item.check.code: item.check for item in judged}
    findings = sorted(
        (finding for item in judged if isinstance(item.outcome, Failed) for finding in item.outcome.findings),
        key=lambda finding: finding.sort_key,
    )
    members: dict[int, list[Finding]] = {}
    causes: dict[int, Finding] = {}
    for finding in findings:
        cause = _first_cause(finding, findings, checks)
        causes[id(cause)] = cause
        members.setdefault(id(cause), [])
        if cause is not finding:
            members[id(cause)].append(finding)
    groups = (Group(cause, tuple(members[key])) for key, cause in causes.items())
    return tuple(sorted(groups, key=lambda item: item.sort_key))


def _first_cause(finding: Finding, findings: list[Finding], checks: Mapping[str, Check]) -> Finding:
    """Follow the explanations up to one that nothing explains; two that explain each other end at the first met."""
    met = [finding]
    while True:
        found = next((other for other in findings if _explains(other, met[-1], checks)), None)
        if found is None:
            return met[-1]
        if any(found is known for known in met):
            return min(met, key=lambda item: item.sort_key)
        met.append(found)


def _explains(cause: Finding, finding: Finding, checks: Mapping[str, Check]) -> bool:
    declared = (
        finding.code in checks[cause.code].explains or cause.code in checks[finding.code].explained_by
    ) and cause.code != finding.code
    mild = cause.severity is Severity.INFO and finding.severity is not Severity.INFO
    if not declared or cause.host != finding.host or mild:
        return False
    return not cause.devices or not finding.devices or not set(cause.devices).isdisjoint(finding.devices)
