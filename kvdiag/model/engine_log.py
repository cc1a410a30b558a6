"""What engine logs say that a check can judge: events, each with where it first stood and how often it came."""

from dataclasses import dataclass

from kvdiag.model.missing import Missing


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEvent:
    """Every line of one kind with equal `fields`; `numbers` are summed over them.

    `offset` is where the first of them starts in the file (bytes), `place` the same as users look it up ("line 12"),
    `text` what matched there, cut. Addresses and request ids are in no field: they would make every line its own event.
    """

    kind: str
    fields: dict[str, str]
    numbers: dict[str, float]
    count: int
    offset: int
    place: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLog:
    """`events` in the order in which they first came; `merged` lines are counted under an event of their kind that
    stands for many; `unread_bytes` in the middle of a long file were not looked at.

    `unreadable` says why nothing of the file could be read, else it is None.
    """

    path: str
    read_bytes: int
    unread_bytes: int
    lines: int
    merged: int
    unreadable: str | None
    events: tuple[LogEvent, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLogs:
    """The logs that were given, in that order; empty where none was."""

    files: tuple[EngineLog, ...] | Missing
