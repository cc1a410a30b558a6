"""A probe's figures with their intervals, and the verdicts on them."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """A median over `samples` repetitions in `unit`; `low` and `high` bound it, None with fewer than five.

    `name` is stable between runs: it is what a baseline is looked up by.
    """

    name: str
    unit: Literal["bytes_per_second", "seconds", "ratio", "count"]
    better: Literal["higher", "lower"]
    value: float
    low: float | None
    high: float | None
    samples: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """One rule applied to one metric; `undetermined` where the samples cannot decide, with the reason."""

    rule: str
    metric: str
    status: Literal["met", "missed", "undetermined"]
    unit: str
    value: float
    limit: float | None
    reason: str
