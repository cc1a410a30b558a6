"""A trace bundle as it was recorded: request columns, counter series, events; null is NaN or None, never zero."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class Labels:
    """A text column: `codes[i]` indexes `names`, -1 where row i has none."""

    names: tuple[str, ...]
    codes: NDArray[np.int32]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RequestColumns:
    """The request rows, sorted by arrival; `numbers` holds every numeric column that has at least one value.

    Column names and units are those of TransferRecord; seconds, bytes, tokens, counts; NaN is "not observed".
    """

    ids: Sequence[str]
    numbers: Mapping[str, NDArray[np.float64]]
    labels: Mapping[str, Labels]

    def __len__(self) -> int:
        return len(self.ids)

    def number(self, name: str) -> NDArray[np.float64] | None:
        """Return a numeric column, or None where no row has a value of it."""
        return self.numbers.get(name)


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricInfo:
    """`kind` is "counter" (cumulative, may reset) or "gauge"."""

    kind: str
    unit: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CounterSeries:
    """One metric of one node (and device): wall-clock seconds ascending, and the value read at each."""

    node: str
    device: str | None
    metric: str
    time_s: NDArray[np.float64]
    value: NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleEvent:
    """Something that happened at one instant; `kind` e.g. mr_register, qp_create, link_down, config_change."""

    time_s: float
    node: str | None = None
    kind: str = ""
    pid: int | None = None
    bytes: float | None = None
    duration_s: float | None = None
    detail: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Bundle:
    """`origin` is the folder; `notes` say in one line each what was unknown, ignored or left out on reading.

    `sampling` is the share of requests recorded (0-1), `incident_start_s` the announced change point, both None
    where meta.json does not say. `window_s` is the length of the windows of which each row is a mean, None where rows
    are requests.
    """

    origin: str
    requests: RequestColumns
    series: tuple[CounterSeries, ...] = ()
    metrics: Mapping[str, MetricInfo] = field(default_factory=dict)
    events: tuple[BundleEvent, ...] = ()
    roles: Mapping[str, str] = field(default_factory=dict)
    sampling: float | None = None
    incident_start_s: float | None = None
    notes: tuple[str, ...] = ()
    window_s: float | None = None
