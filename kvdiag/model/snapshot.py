"""Everything observed on one host at one instant; each part is present or Missing(reason)."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeVar, cast

from kvdiag.model.missing import Missing

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One host, one instant (`time_s`: seconds since the epoch), keyed by the type of each part.

    The set of parts is open: a new source brings a new part type, and nothing here changes.
    """

    host: str
    time_s: float
    parts: Mapping[type[object], object] = field(default_factory=dict)

    def part(self, part_type: type[T]) -> T | Missing:
        """Return the part of that type, or Missing with the reason that its source gave."""
        value = self.parts.get(part_type)
        if value is None:
            return Missing(f"no source read {part_type.__name__}")
        return cast("T | Missing", value)

    def missing(self) -> Iterator[tuple[str, Missing]]:
        """Yield the name and the reason of each part that could not be observed, sorted by name."""
        for part_type, value in sorted(self.parts.items(), key=lambda item: item[0].__name__):
            if isinstance(value, Missing):
                yield part_type.__name__, value
