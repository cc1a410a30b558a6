"""A finding: what is wrong, the numbers that show it, where they were read, and what to do next."""

from dataclasses import dataclass
from enum import Enum


class Severity(Enum):
    INFO = "info"
    WARNING = "warning"
    CRITICAL = "critical"

    @property
    def rank(self) -> int:
        """0 for the gravest, so that a sorted list starts with it."""
        return {"critical": 0, "warning": 1, "info": 2}[self.value]


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """One observed number or text, and where it was read (a path, a netlink call, a log line)."""

    name: str
    value: str
    source: str
    threshold: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """`code` names the check, `subject` the thing judged (device/port, process, variable).

    `devices` are the RDMA devices it concerns; empty means the whole host.
    """

    code: str
    severity: Severity
    subject: str
    summary: str
    evidence: tuple[Evidence, ...]
    action: str
    host: str = ""
    devices: tuple[str, ...] = ()

    @property
    def sort_key(self) -> tuple[int, str, str, str, str]:
        """A total order: gravest first, then code, host, subject and text."""
        return (self.severity.rank, self.code, self.host, self.subject, self.summary)
