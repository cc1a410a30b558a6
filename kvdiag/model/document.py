"""The head that every `--format json` document carries."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """`schema` is `kvdiag.<command>/<major>`; `time` is RFC 3339 in UTC; a subclass adds the command's body."""

    schema: str
    version: str
    host: str
    time: str
