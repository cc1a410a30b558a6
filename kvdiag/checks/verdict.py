"""What all checks together say: the counts, and the status that the exit code comes from."""

from collections import Counter
from collections.abc import Sequence
from typing import Literal

from kvdiag.checks.base import Failed, Judged, NotApplicable, NotObservable, Outcome, Passed
from kvdiag.checks.first_cause import Group, group
from kvdiag.checks.waivers import Waived
from kvdiag.model.finding import Finding, Severity
from kvdiag.model.preflight import CheckResult, PreflightFinding, PreflightVerdict

SEEN_AT_LEAST = 0.25
"""Share of the checks with something to judge that must have seen it, or a host without findings is no passed one. Of
the healthy hosts in tests/fixtures/hosts the least has 0.43 (soft RoCE without any vendor's tools); a host of which
nothing but names of folders can be read has about 0.02."""


def summarise(
    judged: Sequence[Judged], waived: Sequence[Waived] = ()
) -> tuple[PreflightVerdict, tuple[PreflightFinding, ...], tuple[CheckResult, ...]]:
    """Return the verdict, the findings in the order they are shown, and one result per check.

    `waived` findings are no longer among those of `judged`, and are only counted.
    """
    groups = group(judged)
    titles = {item.check.code: item.check.title for item in judged}
    findings = [
        shown(finding, titles[finding.code], None if finding is item.cause else item.cause.code)
        for item in groups
        for finding in (item.cause, *item.consequences)
    ]
    results = tuple(
        CheckResult(code=item.check.code, title=item.check.title, status=status, detail=detail)
        for item in judged
        for status, detail in (_status(item.outcome),)
    )
    return _verdict(groups, results, len(waived)), tuple(findings), results


def _verdict(groups: Sequence[Group], results: Sequence[CheckResult], waived: int) -> PreflightVerdict:
    # A group counts as its gravest member: a mild cause with a critical consequence is critical.
    severities = Counter(item.sort_key[0] for item in groups)
    checks = Counter(result.status for result in results)
    status: Literal["passed", "warning", "critical", "undetermined"] = "passed"
    if severities[Severity.CRITICAL.rank]:
        status = "critical"
    elif severities[Severity.WARNING.rank]:
        status = "warning"
    elif checks["passed"] <= (checks["passed"] + checks["not_observable"]) * SEEN_AT_LEAST:
        status = "undetermined"
    return PreflightVerdict(
        status=status,
        critical=severities[Severity.CRITICAL.rank],
        warning=severities[Severity.WARNING.rank],
        info=severities[Severity.INFO.rank],
        explained=sum(len(item.consequences) for item in groups),
        passed=checks["passed"],
        waived=waived,
        not_applicable=checks["not_applicable"],
        not_observable=checks["not_observable"],
    )


def _status(outcome: Outcome) -> tuple[Literal["passed", "failed", "waived", "not_applicable", "not_observable"], str]:
    match outcome:
        case Passed(examined):
            return "passed", examined
        case Failed(()):
            return "waived", "every finding is waived"
        case Failed(findings):
            return "failed", f"{len(findings)} finding(s)"
        case NotApplicable(reason):
            return "not_applicable", reason
        case NotObservable(reason):
            return "not_observable", reason


def shown(finding: Finding, title: str, explained_by: str | None) -> PreflightFinding:
    """Return the finding as documents hold it."""
    return PreflightFinding(
        code=finding.code,
        title=title,
        severity=finding.severity,
        host=finding.host,
        subject=finding.subject,
        devices=finding.devices,
        summary=finding.summary,
        evidence=finding.evidence,
        action=finding.action,
        explained_by=explained_by,
    )
