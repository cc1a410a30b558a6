"""Lines of the kernel log that say one thing, as evidence."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from kvdiag.model.finding import Evidence
from kvdiag.model.kernel_log import KernelLog
from kvdiag.model.missing import Missing
from kvdiag.model.snapshot import Snapshot

_STAMP = re.compile(r"^\[ *(\d{1,12}\.\d{1,9})\]")
_SHOWN = 200


@dataclass(frozen=True, slots=True)
class Line:
    """`seconds` after boot, None where the line has no such stamp (`dmesg -T`)."""

    text: str
    match: re.Match[str]
    seconds: float | None


def matching(snapshot: Snapshot, pattern: str) -> tuple[Line, ...] | Missing:
    """Return the lines in which the pattern is found, oldest first; Missing where the log cannot be read."""
    log = snapshot.part(KernelLog)
    if isinstance(log, Missing):
        return log
    compiled = re.compile(pattern)
    found = ((line, compiled.search(line)) for line in log.lines)
    return tuple(Line(line, match, _seconds(line)) for line, match in found if match)


def evidence(snapshot: Snapshot, lines: Sequence[Line]) -> tuple[Evidence, ...]:
    """Return the newest of the lines, with how many there are."""
    log = snapshot.part(KernelLog)
    origin = "dmesg" if isinstance(log, Missing) else log.origin
    return (Evidence(name=f"kernel log ({len(lines)} line(s))", value=lines[-1].text[:_SHOWN], source=origin),)


def _seconds(line: str) -> float | None:
    match = _STAMP.match(line)
    return float(match[1]) if match else None
