"""A finding that is known and accepted for a while."""

from dataclasses import dataclass
from datetime import date
from fnmatch import fnmatchcase

from kvdiag.model.finding import Finding


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiver:
    """`host` and `subject` are shell patterns; `expires` is the last day (UTC) on which it holds."""

    code: str
    reason: str
    expires: date
    host: str = "*"
    subject: str = "*"

    def covers(self, finding: Finding) -> bool:
        """Return whether the waiver is meant for a finding, whatever the day."""
        return (
            finding.code == self.code.upper()
            and fnmatchcase(finding.host, self.host)
            and fnmatchcase(finding.subject, self.subject)
        )
