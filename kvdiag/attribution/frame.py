"""What causes look at: the rows with their split into baseline and incident, and counters around each transfer."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from kvdiag.attribution.blocks import LEAST_BIN_S
from kvdiag.attribution.clocks import PAD_S as ALIGNED_PAD_S
from kvdiag.attribution.clocks import Offset, aligned
from kvdiag.attribution.rates import NodeRate, Spans, change_rates, peer_rates
from kvdiag.derive.counters import CounterBank, NodeWindows, node_windows
from kvdiag.derive.stages import StageMatrix
from kvdiag.model.bundle import Bundle, CounterSeries, Labels

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]
Role = Literal["prefill", "decode"]
ROLES: tuple[Role, ...] = ("prefill", "decode")

CLOCK_PAD_S = 2.0
"""Nodes' clocks may be off by up to 2 s (trace bundle format): windows on counters are widened by that much."""
BEST_TENTH = 0.1
"""Without a baseline, what a byte costs is read off the best tenth of transfers, and ..."""
CONTENTION = 1.25
"""... the mean of healthy transfers lies a quarter above it: they share links (1.05 to 1.35 in simulated clusters)."""
MOST_SLOWNESS = 4.0
"""Where the link's speed is known, no more than four times the bytes' bare time is taken for healthy (simulated
clusters: 1.7 to 2.6 in the best tenth, all stages of the transfer together)."""
MANY_ROWS = 200_000
WINDOWS_KEPT = 2
"""Of the intervals around the rows' transfers, by side and width: those of a million rows take 60 MB."""


@dataclass(slots=True, eq=False)
class Frame:
    """Rows sorted by arrival; `incident` marks the period in question, from `split_s` to before `stop_s`.

    The baseline is the rest: what came before, after, or both.

    `offsets` are those of the nodes whose counters were put on the requests' clock.
    `standing` frames have no baseline: every row is in question, and what is usual comes from expectation and peers.
    """

    bundle: Bundle
    stages: StageMatrix
    incident: Mask
    split_s: float
    counters: CounterBank
    stop_s: float = np.inf
    standing: bool = False
    offsets: Mapping[str, Offset] = field(default_factory=dict)
    _rates: dict[str, dict[str, NodeRate]] | None = None
    _numbers: dict[str, Floats | None] = field(default_factory=dict)
    _around: dict[tuple[str, Role, float | None], Floats] = field(default_factory=dict)
    _windows: dict[tuple[Role, float | None], NodeWindows] = field(default_factory=dict)
    _window: tuple[Floats, Floats] | None = None
    memo: dict[str, object] = field(default_factory=dict)
    """What was computed once of this frame, by name."""

    @property
    def rows(self) -> int:
        return len(self.incident)

    @property
    def arrival_s(self) -> Floats:
        return self.bundle.requests.numbers["arrival_s"]

    @property
    def start_s(self) -> float:
        return float(self.arrival_s[0])

    @property
    def end_s(self) -> float:
        return float(self.arrival_s[-1])

    def spans(self, incident: bool) -> Spans:
        """Return the stretches of time of one of the two periods, [from, to] in wall-clock seconds."""
        first, last = self.start_s, self.end_s
        begin, stop = (min(max(one, first), last) for one in (self.split_s, self.stop_s))
        whole = ((begin, stop),) if incident else ((first, begin), (stop, last))
        return tuple(span for span in whole if span[1] > span[0])

    def period_s(self, incident: bool) -> float:
        """Return how long a period lasts in all, in seconds (never zero)."""
        return max(sum(stop - begin for begin, stop in self.spans(incident)), 1e-9)

    def clock(self, incident: bool) -> Floats:
        """Return the arrivals of a period's rows in seconds since its begin, the time of the other one cut out."""
        arrival = self.arrival_s[self.incident == incident]
        passed = np.zeros(len(arrival))
        for begin, stop in self.spans(incident):
            passed += np.clip(arrival - begin, 0.0, stop - begin)
        return passed

    @property
    def least_bin_s(self) -> float:
        """The shortest bin of time that makes sense for a bootstrap, in seconds."""
        return self.bundle.window_s or LEAST_BIN_S

    @property
    def windowed(self) -> bool:
        """Whether each row is the mean over a window of time instead of a request."""
        return self.bundle.window_s is not None

    @property
    def sampling(self) -> float:
        return self.bundle.sampling or 1.0

    def number(self, name: str) -> Floats | None:
        """Return a column with its gaps filled by its median, or None where no row has it; not to be written to."""
        if name not in self._numbers:
            values = self.bundle.requests.number(name)
            if values is not None and np.isnan(values).any():
                values = np.where(np.isnan(values), np.nanmedian(values), values)
            self._numbers[name] = values
        return self._numbers[name]

    def nodes(self, role: Role) -> Labels:
        """Return the rows' prefill or decode nodes (all -1 where the column is missing)."""
        return self.bundle.requests.labels.get(f"{role}_node") or Labels((), np.full(self.rows, -1, dtype=np.int32))

    def node_names(self, role: Role) -> tuple[str, ...]:
        return tuple(sorted(self.nodes(role).names))

    def kv_window(self) -> tuple[Floats, Floats]:
        """Return when each request's KV part began and ended, in seconds of wall-clock time (or its window did)."""
        if self._window is None:
            self._window = self._kv_window()
        return self._window

    def _kv_window(self) -> tuple[Floats, Floats]:
        if self.bundle.window_s is not None:
            return self.arrival_s, self.arrival_s + self.bundle.window_s
        before = np.zeros(self.rows)
        for name in ("queue_s", "prefill_s"):
            stage = self.stages.stage(name)
            before += 0 if stage is None else stage
        start = self.arrival_s + before
        first_step = self.stages.stage("first_step_s")
        stop = self.arrival_s + self.stages.ttft_s - (0 if first_step is None else first_step)
        return start, np.maximum(stop, start)

    def seconds_per_byte(self) -> float:
        """Return the baseline's mean transfer seconds per byte (the finest stage that contains the wire).

        Without a baseline, CONTENTION times that of the best tenth of transfers.
        """
        size = self.number("bytes")
        name = next((one for one in ("wire_s", "transfer_s", "kv_wait_s") if one in self.stages.names), None)
        wire = None if name is None else self.stages.stage(name)
        if size is None or wire is None or name is None:
            return 0.0
        moved = (size > 0) & self.stages.known(name)
        if self.standing and moved.any():
            return CONTENTION * float(np.quantile(wire[moved] / size[moved], BEST_TENTH))
        base = ~self.incident & self.stages.known(name)
        if size[base].sum() <= 0:
            return 0.0
        return float(wire[base].sum() / size[base].sum())

    def counted_devices(self, metric: str, node: str) -> tuple[CounterSeries, ...]:
        """Return the metric's series of a node's single devices, on the requests' clock."""
        offset = self.offsets[node].seconds if node in self.offsets else 0.0
        return tuple(
            replace(one, time_s=one.time_s - offset)
            for one in self.bundle.series
            if one.metric == metric and one.node == node and one.device is not None
        )

    def rates(self, metric: str) -> dict[str, NodeRate]:
        """Return the metric's change per node, for the nodes that have it."""
        if self._rates is None:
            if self.standing:
                sides = tuple(frozenset(self.node_names(role)) for role in ROLES)
                self._rates = peer_rates(self.counters, self.start_s, self.end_s, sides)
            else:
                self._rates = change_rates(self.counters, self.spans(incident=False), self.spans(incident=True))
        return self._rates.get(metric, {})

    def around(self, metric: str, role: Role, pad_s: float | None = None) -> Floats | None:
        """Return the rate (gauge: mean) at the row's own node around its KV part; None where no such node has it.

        The window is wider by `pad_s` on either side, or else by what the node's clock may be off.
        """
        labels = self.nodes(role)
        if not set(labels.names) & set(self.rates(metric)):
            return None
        key = (metric, role, pad_s)
        if key not in self._around:
            self._around[key] = self.counters.per_row(metric, self._node_windows(role, pad_s))
        return self._around[key]

    def _node_windows(self, role: Role, pad_s: float | None) -> NodeWindows:
        known = self._windows.pop((role, pad_s), None)
        if known is None:
            labels = self.nodes(role)
            start, stop = self.kv_window()
            by_row: Floats | float = 0.0 if pad_s is None else pad_s
            if self.windowed:
                by_row = 0.0
            elif pad_s is None:
                pads = [ALIGNED_PAD_S if node in self.offsets else CLOCK_PAD_S for node in labels.names]
                by_row = np.array([*pads, CLOCK_PAD_S])[labels.codes]
            known = node_windows(labels.names, labels.codes, start - by_row, stop + by_row)
            while len(self._windows) >= WINDOWS_KEPT:
                self._windows.pop(next(iter(self._windows)))
        self._windows[role, pad_s] = known
        return known

    def relieve(self) -> None:
        """Forget what was read of counters around each of very many rows: it is read again where it is asked for."""
        if self.rows > MANY_ROWS:
            self._around.clear()
            self._windows.clear()

    def throughout(self) -> "Frame":
        """Return the frame without a baseline: all of it is in question; what was read of counters is shared."""
        return replace(
            self,
            incident=np.ones(self.rows, dtype=bool),
            split_s=self.start_s,
            stop_s=np.inf,
            standing=True,
            _rates=None,
            memo={},
        )

    def head(self, rows: int) -> "Frame":
        """Return the frame of the first rows only (itself where it has no more)."""
        if rows >= self.rows:
            return self
        requests = self.bundle.requests
        first = replace(
            requests,
            ids=requests.ids[:rows],
            numbers={name: values[:rows] for name, values in requests.numbers.items()},
            labels={name: replace(one, codes=one.codes[:rows]) for name, one in requests.labels.items()},
        )
        return Frame(
            bundle=replace(self.bundle, requests=first),
            stages=self.stages.rows(np.arange(self.rows) < rows),
            incident=self.incident[:rows],
            split_s=self.split_s,
            counters=self.counters,
            stop_s=self.stop_s,
            standing=self.standing,
            offsets=self.offsets,
        )

    def reference(self, metric: str, role: Role, which: Literal["base", "base_high"] = "base") -> Floats:
        """Return for each row what the baseline was at its own node (NaN where not recorded)."""
        labels = self.nodes(role)
        rates = self.rates(metric)
        table = [getattr(rates[node], which) if node in rates else np.nan for node in labels.names]
        return np.array([*table, np.nan])[labels.codes]

    def pull_rate(self, role: Role) -> Floats:
        """Return each row's node's requests per second over its period (sampling undone), for per-request doses."""
        labels = self.nodes(role)
        rate = np.zeros(self.rows)
        for period in (False, True):
            here, span = self.incident == period, self.period_s(period)
            count = np.bincount(labels.codes[here] + 1, minlength=len(labels.names) + 1)
            rate[here] = (count / span / self.sampling)[labels.codes[here] + 1]
        return np.maximum(rate, 1e-9)


def build_frame(
    bundle: Bundle,
    stages: StageMatrix,
    split_s: float,
    stop_s: float = np.inf,
    offsets: Mapping[str, Offset] | None = None,
) -> Frame:
    """Return the frame of a bundle whose incident lasts from `split_s` to before `stop_s`; `offsets` are applied."""
    arrival = bundle.requests.numbers["arrival_s"]
    return Frame(
        bundle=bundle,
        stages=stages,
        incident=(arrival >= split_s) & (arrival < stop_s),
        split_s=split_s,
        stop_s=stop_s,
        counters=_bank(aligned(bundle, offsets or {})),
        offsets=offsets or {},
    )


def standing_frame(bundle: Bundle, stages: StageMatrix, offsets: Mapping[str, Offset] | None = None) -> Frame:
    """Return the frame of a bundle without a baseline: all of it is in question."""
    return build_frame(bundle, stages, -np.inf, offsets=offsets).throughout()


def _bank(bundle: Bundle) -> CounterBank:
    counters = CounterBank(bundle.series, bundle.metrics)
    counters.add_events("reg.mr_registered", bundle.events, "mr_register")
    counters.add_events("conn.qp_created", bundle.events, "qp_create")
    return counters
