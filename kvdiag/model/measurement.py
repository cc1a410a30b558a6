"""What a probe measured: a value with its unit, and the distribution behind it where there is one."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """Percentiles of per-operation samples, in the unit of the measurement that holds it."""

    count: int
    minimum: float
    mean: float
    p50: float
    p90: float
    p99: float
    p999: float
    maximum: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """`unit` is a base unit: "seconds", "bytes", "bytes_per_second", "ratio", "count"."""

    name: str
    value: float
    unit: str
    labels: dict[str, str] = field(default_factory=dict)
    distribution: Distribution | None = None
