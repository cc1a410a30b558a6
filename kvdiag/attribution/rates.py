"""What counters and gauges did at each node: in the baseline and the incident, or beside what is usual among peers."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvdiag.derive.counters import CounterBank

Floats = NDArray[np.float64]
Spans = tuple[tuple[float, float], ...]

REFERENCE_BIN_S = 10.0
QUIET = 0.2
"""Without a baseline, a rate's usual value is that of the quietest fifth of the time at the quietest quarter of nodes;
its usual height the eightieth percentile there."""
QUIET_NODES = 0.25
HEALTHY_ZERO = frozenset(
    {
        "nic.pause_us",
        "nic.out_of_sequence",
        "nic.retransmits",
        "nic.ack_timeouts",
        "nic.symbol_errors",
        "host.tcp_rx_bytes",
        "host.cpu_stalled_us",
        "host.io_stalled_us",
        "host.memory_stalled_us",
        "reg.mr_registered",
        "reg.mr_register_us",
        "reg.cache_misses",
        "nixl.registered_bytes",
        "conn.qp_created",
        "conn.handle_alloc_failures",
        "engine.admit_queue_depth",
        "engine.pull_queue_depth",
    }
)
"""What a warmed-up, healthy deployment does not do at all: without a baseline, zero is the expectation."""
SPEED = "nic.link_gbps"
"""The expectation without a baseline is the fastest node's."""


@dataclass(frozen=True, slots=True)
class NodeRate:
    """One metric at one node: mean in the baseline, its 95th percentile over 10 s bins, mean in the incident."""

    node: str
    base: float
    base_high: float
    incident: float
    origin: str = "counters"


def change_rates(counters: CounterBank, baseline: Spans, incident: Spans) -> dict[str, dict[str, NodeRate]]:
    """Return by metric and node what the counters did in the baseline and in the incident."""
    spans = (baseline, incident)
    starts, stops = [], []
    for begin, stop in spans[0]:
        # Of equal length: a sliver at the end, where what follows may have begun already, would be the highest.
        edges = np.linspace(begin, stop, max(int((stop - begin) / REFERENCE_BIN_S), 1) + 1)
        starts.append(edges[:-1])
        stops.append(edges[1:])
    bins = sum(len(one) for one in starts)
    whole = np.array([*spans[0], *spans[1]]).reshape(-1, 2)
    start, end = np.concatenate([*starts, whole[:, 0]]), np.concatenate([*stops, whole[:, 1]])
    found: dict[str, dict[str, NodeRate]] = {}
    before = slice(bins, bins + len(spans[0]))
    for node in counters.every_node():
        for metric, means in counters.every_mean(node, start, end):
            found.setdefault(metric, {})[node] = NodeRate(
                node=node,
                base=_weighted(means[before], spans[0]),
                base_high=_quantile(means[:bins], 0.95),
                incident=_weighted(means[before.stop :], spans[1]),
                origin=counters.origin(metric),
            )
    return {metric: dict(sorted(nodes.items())) for metric, nodes in found.items()}


def _weighted(means: Floats, spans: Spans) -> float:
    """Return the mean over several stretches, NaN where none of them was recorded."""
    if len(spans) == 1:
        return float(means[0])
    total = length = 0.0
    for mean, (begin, stop) in zip(means.tolist(), spans, strict=True):
        if mean == mean:
            total, length = total + mean * (stop - begin), length + stop - begin
    return total / length if length > 0 else float("nan")


def peer_rates(
    counters: CounterBank, start_s: float, end_s: float, sides: tuple[frozenset[str], ...]
) -> dict[str, dict[str, NodeRate]]:
    """Return by metric each node's mean beside what is usual among the nodes of its side; zero for what should not be.

    Usual is the quietest of times at the quietest of nodes, of a link's speed the fastest.
    """
    edges = np.arange(start_s, end_s, REFERENCE_BIN_S)
    starts, stops = np.append(edges, start_s), np.append(edges + REFERENCE_BIN_S, end_s)
    recorded: dict[str, dict[str, Floats]] = {}
    for node in counters.every_node():
        for metric, means in counters.every_mean(node, starts, stops):
            recorded.setdefault(metric, {})[node] = means
    found: dict[str, dict[str, NodeRate]] = {}
    for metric, nodes in recorded.items():
        usual: dict[tuple[str, ...], tuple[float, float] | None] = {}
        found[metric], origin = {}, counters.origin(metric)
        for node in sorted(nodes):
            mean = float(nodes[node][-1])
            if metric in HEALTHY_ZERO:
                found[metric][node] = NodeRate(node=node, base=0.0, base_high=0.0, incident=mean, origin=origin)
                continue
            peers = tuple(name for name in nodes if any(node in side and name in side for side in sides)) or (node,)
            if metric == SPEED:
                peers = tuple(nodes)
            if peers not in usual:
                usual[peers] = _usual(metric, np.array([nodes[peer][:-1] for peer in peers]))
            low, high = usual[peers] or (mean, mean)
            found[metric][node] = NodeRate(node=node, base=low, base_high=high, incident=mean, origin=origin)
    return found


def _usual(metric: str, bins: Floats) -> tuple[float, float] | None:
    """Return what is usual and usually high of a metric, given its means by peer and time; None where one has none."""
    if bins.shape[1] == 0 or np.isnan(bins).all(axis=1).any():
        return None
    if metric == SPEED:
        best = max(_quantile(one, 1 - QUIET) for one in bins)
        return best, best
    low, high = (
        _quantile(np.array([_quantile(one, share) for one in bins]), QUIET_NODES) for share in (QUIET, 1 - QUIET)
    )
    return low, high


def _quantile(values: Floats, q: float) -> float:
    """Return what numpy.nanquantile does, NaN of nothing; of one counter's few values ten times as quickly."""
    ordered = np.sort(values[np.isfinite(values)])
    if not ordered.size:
        return float("nan")
    place = q * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return float(ordered[low] + (ordered[high] - ordered[low]) * (place - low))
