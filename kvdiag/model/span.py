"""One OpenTelemetry span as the readers see it."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from kvdiag.model.record import Key

Attributes = Mapping[str, str | int | float | bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Identifiers in hexadecimal, times in seconds of the epoch, `failed` the status text of one that did."""

    name: str
    trace_id: str
    start_s: float
    end_s: float
    scope: str = ""
    attributes: Attributes
    resource: Attributes
    failed: str = ""

    @property
    def duration_s(self) -> float:
        return self.end_s - self.start_s

    @property
    def trace_key(self) -> tuple[Key, ...]:
        return (("trace", self.trace_id),) if self.trace_id else ()

    def number(self, name: str) -> float | None:
        """Return a numeric attribute; None where it is absent, no number, negative or not finite."""
        value = self.attributes.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            return None
        return float(value) if 0 <= value < math.inf else None

    def text(self, name: str) -> str | None:
        value = self.attributes.get(name)
        return value if isinstance(value, str) and value else None
