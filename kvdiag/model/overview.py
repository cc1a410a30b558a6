"""A trace bundle summed up for drawing: distributions, pairs, time bins, counters and events of bounded size."""

from dataclasses import dataclass

from kvdiag.model.missing import Missing


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeSpan:
    """A stretch of the recording, in seconds since the first arrival; `period` is baseline, incident or whole."""

    period: str
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantiles:
    """One quantity's distribution in one period: `value_s[i]` is its quantile at `share[i]`; `floor_s` is what the
    `below_floor` shorter ones are drawn at: a logarithmic axis has no zero.
    """

    quantity: str
    period: str
    count: int
    value_s: tuple[float, ...]
    share: tuple[float, ...]
    p50_s: float
    p99_s: float
    floor_s: float
    below_floor: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PairCell:
    """Means of one prefill → decode pair, in seconds; None where a period has no request of the pair."""

    prefill: str
    decode: str
    requests: int
    mean_s: float | None
    ttft_p99_s: float | None
    baseline_requests: int
    baseline_mean_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PairMatrix:
    """`cells` row by row; `left_out` pairs of further nodes are not among them."""

    quantity: str
    prefill_nodes: tuple[str, ...]
    decode_nodes: tuple[str, ...]
    cells: tuple[PairCell, ...]
    left_out: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeBin:
    """Quantiles of the requests that arrived in one bin; `middle_s` since the first arrival."""

    middle_s: float
    requests: int
    p50_s: float
    p99_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """One quantity over time; `points` are (arrival, value) of every request, empty where there are too many."""

    quantity: str
    bins: tuple[TimeBin, ...]
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CounterCurve:
    """One series, `values` per second if it counts and as read if it is a gauge; times since the first arrival."""

    series: str
    time_s: tuple[float, ...]
    values: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CounterChart:
    """The series of one metric that matter most; `left_out` more were recorded. `counts`: values are rates."""

    metric: str
    unit: str
    counts: bool
    curves: tuple[CounterCurve, ...]
    left_out: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EventMark:
    """`count` events of one kind at one node close together, the first of them `at_s` since the first arrival."""

    at_s: float
    kind: str
    node: str
    count: int
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """`binned` says in a line each what was summed up or left out; a part is Missing with the reason."""

    first_arrival_s: float
    length_s: float
    requests: int
    bin_s: float
    spans: tuple[TimeSpan, ...]
    distributions: tuple[Quantiles, ...]
    pairs: PairMatrix | Missing
    timelines: tuple[Timeline, ...]
    counters: tuple[CounterChart, ...]
    counters_missing: str | None
    events: tuple[EventMark, ...]
    binned: tuple[str, ...]
