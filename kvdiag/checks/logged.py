"""What checks of engine logs share: the events of a kind, and the answers where there is none."""

from dataclasses import dataclass

from kvdiag.checks.base import Hosts, NotApplicable, NotObservable, Outcome, Passed
from kvdiag.derive.rdma import joined
from kvdiag.model.engine_log import EngineLog, EngineLogs, LogEvent
from kvdiag.model.finding import Evidence
from kvdiag.model.missing import Missing
from kvdiag.model.snapshot import Snapshot

NO_LOG = "no engine log was given: name one with --log FILE"


@dataclass(frozen=True, slots=True)
class Logged:
    """An event, and the log that it stands in."""

    log: EngineLog
    event: LogEvent

    @property
    def source(self) -> str:
        return f"{self.log.path}, {self.event.place}"

    def field(self, name: str) -> str:
        """Return a field of the event, "" where the line did not name it."""
        return self.event.fields.get(name, "")

    def evidence(self, name: str, threshold: str | None = None) -> Evidence:
        """Return the first such line with how often it came."""
        times = f" ({self.event.count} times)" if self.event.count > 1 else ""
        return Evidence(name=name, value=f"{self.event.text}{times}", source=self.source, threshold=threshold)


def logs_of(snapshot: Snapshot) -> tuple[EngineLog, ...]:
    """Return the logs that could be read; empty where none was given or none can be read."""
    part = snapshot.part(EngineLogs)
    files = part.files if isinstance(part, EngineLogs) else ()
    return () if isinstance(files, Missing) else tuple(log for log in files if log.unreadable is None)


def logged(snapshot: Snapshot, *kinds: str) -> tuple[Logged, ...]:
    """Return the events of these kinds, log by log, in the order in which they first came."""
    return tuple(
        Logged(log, event) for log in logs_of(snapshot) for event in log.events if not kinds or event.kind in kinds
    )


def times(found: tuple[Logged, ...]) -> int:
    """Return how many lines the events stand for."""
    return sum(item.event.count for item in found)


def unread_log(snapshot: Snapshot) -> str | None:
    """Return why a log that was given cannot be read; None where every one was, or none was given."""
    part = snapshot.part(EngineLogs)
    if isinstance(part, Missing):
        return None
    if isinstance(part.files, Missing):
        return part.files.missing
    return next((log.unreadable for log in part.files if log.unreadable is not None), None)


def none_logged(hosts: Hosts, what: str) -> Outcome:
    """Return the answer of a check that found nothing: passed only where every log was given, read and whole."""
    part = hosts.local.part(EngineLogs)
    if isinstance(part, Missing):
        return NotObservable(part.missing)
    if isinstance(part.files, Missing):
        return NotObservable(part.files.missing)
    if not part.files:
        return NotApplicable(NO_LOG)
    if (hidden := unread_log(hosts.local)) is not None:
        return NotObservable(hidden)
    if not any(log.read_bytes for log in part.files):
        return NotObservable(f"{joined(log.path for log in part.files)}: empty")
    unread = sum(log.unread_bytes for log in part.files)
    lines = sum(log.lines for log in part.files)
    skipped = f" ({unread} bytes in the middle were not read)" if unread else ""
    return Passed(f"{what} in {lines} lines of {joined((log.path for log in part.files), 4)}{skipped}")
