"""The document of `kvdiag preflight --format json`."""

from dataclasses import dataclass
from typing import Literal

from kvdiag.model.document import Document
from kvdiag.model.exit_code import ExitCode
from kvdiag.model.finding import Evidence, Severity


@dataclass(frozen=True, slots=True, kw_only=True)
class PreflightFinding:
    """A finding with the title of its check; `explained_by` is the code of the first cause, None where it is one."""

    code: str
    title: str
    severity: Severity
    host: str
    subject: str
    devices: tuple[str, ...]
    summary: str
    evidence: tuple[Evidence, ...]
    action: str
    explained_by: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """`detail` says what was examined, how many findings there are, or why the check could not judge; `waived` are
    checks all of whose findings are.
    """

    code: str
    title: str
    status: Literal["passed", "failed", "waived", "not_applicable", "not_observable"]
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WaivedFinding:
    """A finding that counts for nothing until the day after `expires` (YYYY-MM-DD, UTC), and why."""

    finding: PreflightFinding
    reason: str
    expires: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingPart:
    """A part of a host's snapshot that could not be observed."""

    host: str
    part: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PreflightVerdict:
    """`status` is undetermined where no finding is graver than a note and fewer than a quarter of the checks with
    something to judge could see it. `critical`, `warning` and `info` count first causes, `explained` the findings that
    follow from them; the other counts are of checks.
    """

    status: Literal["passed", "warning", "critical", "undetermined"]
    critical: int
    warning: int
    info: int
    explained: int
    passed: int
    waived: int
    not_applicable: int
    not_observable: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PreflightDocument(Document):
    """`findings` gravest first, each cause before what it explains; `checks` by code; `notes` are about waivers;
    `engines` says in a line each which serving processes were judged, and how they are set up to transfer.

    Findings below `fail_on` leave the exit code alone.
    """

    schema: Literal["kvdiag.preflight/1"]
    verdict: PreflightVerdict
    peers: tuple[str, ...]
    findings: tuple[PreflightFinding, ...]
    checks: tuple[CheckResult, ...]
    missing: tuple[MissingPart, ...]
    waived: tuple[WaivedFinding, ...] = ()
    notes: tuple[str, ...] = ()
    engines: tuple[str, ...] = ()
    fail_on: Literal["warning", "critical"] = "warning"

    @property
    def exit_code(self) -> ExitCode:
        """Never PASSED where next to nothing was examined."""
        if self.verdict.status == "warning" and self.fail_on == "critical":
            return ExitCode.PASSED
        return {
            "passed": ExitCode.PASSED,
            "warning": ExitCode.WARNING,
            "critical": ExitCode.CRITICAL,
            "undetermined": ExitCode.UNDETERMINED,
        }[self.verdict.status]
