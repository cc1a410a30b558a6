"""What causes look at: the rows with their split into baseline and incident, and counters around each transfer."""

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from kvdiag.derive.counters import CounterBank
from kvdiag.derive.stages import StageMatrix
from kvdiag.model.bundle import Bundle, Labels

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]
Role = Literal["prefill", "decode"]

CLOCK_PAD_S = 2.0
"""Nodes' clocks may be off by up to 2 s (trace bundle format): windows on counters are widened by that much."""
REFERENCE_BIN_S = 10.0


@dataclass(frozen=True, slots=True)
class NodeRate:
    """One metric at one node: mean in the baseline, its 95th percentile over 10 s bins, mean in the incident."""

    node: str
    base: float
    base_high: float
    incident: float


@dataclass(slots=True, eq=False)
class Frame:
    """Rows sorted by arrival; `incident` marks the period in question, which starts at `split_s`."""

    bundle: Bundle
    stages: StageMatrix
    incident: Mask
    split_s: float
    counters: CounterBank
    _rates: dict[str, dict[str, NodeRate]] = field(default_factory=dict)

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

    @property
    def sampling(self) -> float:
        return self.bundle.sampling or 1.0

    def number(self, name: str) -> Floats | None:
        """Return a column with its gaps filled by its median, or None where no row has it."""
        values = self.bundle.requests.number(name)
        if values is None:
            return None
        return np.where(np.isnan(values), np.nanmedian(values), values)

    def nodes(self, role: Role) -> Labels:
        """Return the rows' prefill or decode nodes (all -1 where the column is missing)."""
        return self.bundle.requests.labels.get(f"{role}_node") or Labels((), np.full(self.rows, -1, dtype=np.int32))

    def node_names(self, role: Role) -> tuple[str, ...]:
        return tuple(sorted(self.nodes(role).names))

    def kv_window(self) -> tuple[Floats, Floats]:
        """Return when each request's KV part began and ended, in seconds of wall-clock time."""
        before = np.zeros(self.rows)
        for name in ("queue_s", "prefill_s"):
            stage = self.stages.stage(name)
            before += 0 if stage is None else stage
        start = self.arrival_s + before
        first_step = self.stages.stage("first_step_s")
        stop = self.arrival_s + self.stages.ttft_s - (0 if first_step is None else first_step)
        return start, np.maximum(stop, start)

    def seconds_per_byte(self) -> float:
        """Return the baseline's mean transfer seconds per byte (the finest stage that contains the wire)."""
        size = self.number("bytes")
        wire = next((s for n in ("wire_s", "transfer_s", "kv_wait_s") if (s := self.stages.stage(n)) is not None), None)
        base = ~self.incident
        if size is None or wire is None or size[base].sum() <= 0:
            return 0.0
        return float(wire[base].sum() / size[base].sum())

    def rates(self, metric: str) -> dict[str, NodeRate]:
        """Return the metric's change per node, for the nodes that have it."""
        if metric not in self._rates:
            self._rates[metric] = {node: self._rate(metric, node) for node in self.counters.nodes(metric)}
        return self._rates[metric]

    def _rate(self, metric: str, node: str) -> NodeRate:
        edges = np.arange(self.start_s, self.split_s, REFERENCE_BIN_S)
        step = min(REFERENCE_BIN_S, max(self.split_s - self.start_s, 1e-3))
        bins = self.counters.mean(metric, node, edges, np.minimum(edges + step, self.split_s))
        bins = bins[np.isfinite(bins)]
        return NodeRate(
            node=node,
            base=float(self.counters.mean(metric, node, self.start_s, self.split_s)),
            base_high=float(np.quantile(bins, 0.95)) if bins.size else float("nan"),
            incident=float(self.counters.mean(metric, node, self.split_s, self.end_s)),
        )

    def around(self, metric: str, role: Role, pad_s: float = CLOCK_PAD_S) -> Floats | None:
        """Return the rate (gauge: mean) at the row's own node around its KV part; None where no such node has it."""
        labels = self.nodes(role)
        if not set(labels.names) & set(self.rates(metric)):
            return None
        start, stop = self.kv_window()
        return self.counters.per_row(metric, labels.names, labels.codes, start - pad_s, stop + pad_s)

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
        spans = {False: self.split_s - self.start_s, True: self.end_s - self.split_s}
        for period, span in spans.items():
            here = self.incident == period
            count = np.bincount(labels.codes[here] + 1, minlength=len(labels.names) + 1)
            rate[here] = (count / max(span, 1e-9) / self.sampling)[labels.codes[here] + 1]
        return np.maximum(rate, 1e-9)


def build_frame(bundle: Bundle, stages: StageMatrix, split_s: float) -> Frame:
    """Return the frame of a bundle whose baseline ends where its incident starts, at `split_s`."""
    counters = CounterBank(bundle.series, bundle.metrics)
    registered = [event for event in bundle.events if event.kind == "mr_register"]
    counters.add_events("reg.mr_registered", registered)
    counters.add_events("conn.qp_created", [event for event in bundle.events if event.kind == "qp_create"])
    return Frame(
        bundle=bundle,
        stages=stages,
        incident=bundle.requests.numbers["arrival_s"] >= split_s,
        split_s=split_s,
        counters=counters,
    )
