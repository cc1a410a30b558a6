"""The value that stands for "not observed": absent is never zero."""

from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Missing:
    """Something that could not be observed, and why (one line, shown to users).

    A field may be `scalar | Missing` or `tuple | Missing`; a union of two dataclasses cannot be told apart in JSON.
    """

    missing: str

    def __str__(self) -> str:
        return f"not observable here: {self.missing}"


def present(value: T | Missing) -> T | None:
    """Return the value, or None where it is Missing."""
    return None if isinstance(value, Missing) else value
