"""Flags what cannot be or misleads, and passes impossible values on to nobody."""

from collections import Counter, defaultdict
from collections.abc import Sequence

from kvdiag.model.finding import Evidence, Finding, Severity
from kvdiag_exporters.catalog import Buckets, Metric, Sample
from kvdiag_exporters.collectors import netdev, nic, nixl
from kvdiag_exporters.collectors.base import Setup
from kvdiag_exporters.derived import impossible
from kvdiag_exporters.derived.base import Derived
from kvdiag_exporters.derived.impossible import Judged
from kvdiag_exporters.engines.metrics import BY_NAME
from kvdiag_exporters.going_on import Gone

MOST_FINDINGS = 20
"""Findings of one kind; the metric counts all."""

SIZES = "kvdiag_engine_transfer_size_bytes"
RATES = "kvdiag_engine_transfer_rate_bytes_per_second"
_LINKS = {
    "kvdiag_rdma_port_transmit_bytes_total": nic.SPEED.name,
    "kvdiag_rdma_port_receive_bytes_total": nic.SPEED.name,
    "kvdiag_netdev_transmit_bytes_total": netdev.SPEED.name,
    "kvdiag_netdev_receive_bytes_total": netdev.SPEED.name,
}
_COMPARED = frozenset((*_LINKS, *_LINKS.values()))
"""Besides histograms, what is held against the collection before."""

SUSPECT = Metric(
    name="kvdiag_metric_suspect_series",
    kind="gauge",
    labels=("node", "metric", "reason"),
    help="Series that are impossible (left off) or mislead (kept), by reason; /healthz names them.",
)
DROPPED = Metric(
    name="kvdiag_metric_impossible_values_total",
    kind="counter",
    labels=("reason",),
    help="Values left off since the exporter started because they cannot be.",
)
MISSING_RANKS = Metric(
    name="kvdiag_engine_missing_ranks",
    kind="gauge",
    labels=("node", "engine", "source"),
    help="Ranks between the lowest and the highest that a source shows no series of, or not any more.",
)

METRICS = (SUSPECT, DROPPED, MISSING_RANKS)

_ACTIONS = {
    "share_outside_0_to_1": "compare the engine's version with the name map: the unit has changed",
    "sum_outside_buckets": "compare the engine's version with the name map: the unit has changed",
    "negative": "restart what serves this metric; a counter that overflowed starts again",
    "not_a_number": "look at the source's own exposition",
    "faster_than_link": "compare `rate` of the port with the card's data sheet: rate or counter are of another unit",
    "zero_with_traffic": "read bytes from the NIC instead; this engine does not count them",
    "above_all_buckets": "use sum and count, not quantiles; give the engine larger buckets",
    "below_all_buckets": "use sum and count, not quantiles; give the engine smaller buckets",
    "faster_than_links": "do not hold it against the link: it took NVLink or shared memory, or only its end is timed",
    "missing_ranks": "give every rank telemetry of its own: two processes on one port leave one without",
    "ring_full": "switch the engine to NIXL_TELEMETRY_EXPORTER=prometheus_mp: this ring's totals stand still",
}


class SanityDerivation:
    def __init__(self) -> None:
        self._before: dict[impossible.Key, float | Buckets] = {}
        self._time_s = 0.0
        self._dropped: Counter[str] = Counter()
        self._ranks: dict[tuple[str, str, str], set[str]] = defaultdict(set)

    def go_on(self, before: "SanityDerivation", gone: Gone) -> None:
        """Begin with what was seen before a reload."""
        self._before, self._time_s, self._dropped = before._before, before._time_s, before._dropped
        for head, ranks in before._ranks.items():
            if not gone.has(MISSING_RANKS, head):
                self._ranks[head] = ranks

    def derive(self, samples: Sequence[Sample], monotonic_s: float) -> Derived:
        """Judge every sample, alone and against the collection before."""
        histograms = [one for one in samples if isinstance(one.value, Buckets)]
        after = impossible.state((*histograms, *(one for one in samples if one.metric.name in _COMPARED)))
        elapsed_s = monotonic_s - self._time_s if self._before else 0.0
        judged = [
            *impossible.out_of_range(samples),
            *impossible.contradictory(histograms),
            *impossible.outside_buckets(self._before, histograms),
            *impossible.faster_than_links(self._before, histograms, RATES, _link_rates(samples) if histograms else {}),
            *impossible.faster_than_link(self._before, after, elapsed_s, _LINKS),
            *impossible.counts_without_bytes(self._before, after, SIZES),
            *_full_rings(samples),
        ]
        if not self._before or elapsed_s >= impossible.SHORTEST_S:
            self._before, self._time_s = after, monotonic_s
        found = Derived()
        of_nodes = {metric.name for metric, _, _ in samples if metric.labels[:1] == ("node",)} if judged else set()
        self._tell(judged, of_nodes, found)
        self._tell_ranks(samples, found)
        return found

    def _tell(self, judged: Sequence[Judged], of_nodes: set[str], found: Derived) -> None:
        counts: Counter[tuple[str, str, str]] = Counter()
        for one in judged:
            name, labels = one.key
            node = labels[0] if name in of_nodes else ""
            counts[node, name, one.reason] += 1
            if one.drop:
                found.dropped.add(one.key)
                self._dropped[one.reason] += 1
            if len(found.findings) < MOST_FINDINGS:
                found.findings.append(_finding(one, node))
        found.samples += [SUSPECT.sample(float(count), *labels) for labels, count in sorted(counts.items())]
        found.samples += [DROPPED.sample(float(count), reason) for reason, count in sorted(self._dropped.items())]

    def _tell_ranks(self, samples: Sequence[Sample], found: Derived) -> None:
        """Count ranks with gaps below the highest, and ranks that have gone while others of the source remain."""
        now: dict[tuple[str, str, str], set[str]] = defaultdict(set)
        for metric, labels, _ in samples:
            if metric.name in BY_NAME and labels[4]:
                now[labels[0], labels[1], labels[3]].add(labels[4])
            elif metric is nixl.AGENTS and labels[3]:
                now[labels[0], labels[1], "nixl-files"].add(labels[3])
        for head, ranks in now.items():
            known = self._ranks[head]
            known |= ranks
            # NIXL's ranks are those of the node; an engine's may be of the whole deployment, and others' elsewhere.
            gaps = impossible.rank_gaps(known, from_zero=head[2].startswith("nixl"))
            absent = {str(number) for number in gaps} | (known - ranks)
            found.samples.append(MISSING_RANKS.sample(float(len(absent)), *head))
            if absent:
                shown = ", ".join(sorted(absent)[:8])
                one = Judged(
                    key=(head[2], head), reason="missing_ranks", detail=f"ranks {shown} of {len(known)}", drop=False
                )
                found.findings.append(_finding(one, head[0]))


def _link_rates(samples: Sequence[Sample]) -> dict[str, float]:
    """Return the rates of each node's RDMA ports together."""
    rates: dict[str, float] = defaultdict(float)
    for metric, labels, value in samples:
        if metric is nic.SPEED and not isinstance(value, Buckets):
            rates[labels[0]] += value
    return rates


def _full_rings(samples: Sequence[Sample]) -> list[Judged]:
    return [
        Judged(key=(metric.name, labels), reason="ring_full", detail=f"fill {value:.3f}", drop=False)
        for metric, labels, value in samples
        if metric is nixl.RING_FILL and not isinstance(value, Buckets) and value >= 1
    ]


def _finding(one: Judged, node: str) -> Finding:
    name, labels = one.key
    subject = " ".join((name, *(label for label in labels if label and label != node)))[:120]
    return Finding(
        code="EXP001" if one.drop else "EXP002",
        severity=Severity.WARNING,
        subject=subject,
        summary=f"{one.reason.replace('_', ' ')}: {one.detail}",
        evidence=(Evidence(name=one.reason, value=one.detail, source=name),),
        action=_ACTIONS[one.reason],
        host=node,
    )


def create(setup: Setup) -> SanityDerivation:  # noqa: ARG001  (derivations are made alike)
    return SanityDerivation()
