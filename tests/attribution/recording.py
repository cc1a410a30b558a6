"""What a recorder would have kept of a simulated cluster, and the truth beside it.

Sampled rows, coarse stages, counters of nodes whose clocks differ, decoys, gaps.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from kvdiag.model.bundle import Bundle, CounterSeries, Labels, MetricInfo, RequestColumns
from tests.attribution.cluster import START_S, UNKNOWN, Cluster, Traffic, draw, run, without_fault

Floats = NDArray[np.float64]
COARSER: dict[str, dict[str, tuple[str, ...]]] = {
    "typical": {
        "pre_transfer_s": ("admit_s", "pull_wait_s", "setup_s", "register_s", "handle_s"),
        "transfer_s": ("post_s", "wire_s"),
    },
    "coarse": {"kv_wait_s": ("admit_s", "pull_wait_s", "setup_s", "register_s", "handle_s", "post_s", "wire_s")},
}
COUNTERS = {
    "prefill": ("nic.tx_bytes", "conn.qp_created", "nic.cnp", "engine.prefill_tokens", "engine.arrivals"),
    "decode": (
        *("nic.rx_bytes", "nic.cnp", "nic.pause_us", "nic.out_of_sequence", "nic.retransmits", "nic.ack_timeouts"),
        *("host.tcp_rx_bytes", "reg.mr_registered", "reg.mr_register_us", "reg.cache_misses", "conn.qp_created"),
        "conn.handle_alloc_failures",
    ),
}


@dataclass(frozen=True, kw_only=True)
class Recorder:
    """`clocks_s` is the largest offset of a node's clock; `decoys` harmless steps of counters; `missing` metrics."""

    sampling: float = 1.0
    granularity: str = "full"
    clocks_s: float = 2.0
    decoys: int = 1
    missing: tuple[str, ...] = ()
    announced: bool = True
    whole: bool = False


@dataclass(frozen=True, eq=False)
class Truth:
    """What the faults cost: change of mean and p99 TTFT after the start, seconds, and of which share of the mean."""

    causes: tuple[str, ...]
    excess_mean_s: float
    excess_p99_s: float
    impact: float
    nodes: tuple[str, ...]


def record(world: Cluster, recorder: Recorder | None = None) -> tuple[Bundle, Truth]:
    """Simulate a world twice, with and without its faults, and return the bundle and the truth."""
    seen = run(world, draw(world))
    return _bundle(world, recorder or Recorder(), seen), truth_of(world, seen, healthy(world) if world.faults else seen)


def healthy(world: Cluster) -> Traffic:
    """Return the same world's traffic without its faults."""
    return run(without_fault(world), draw(without_fault(world)))


def truth_of(world: Cluster, seen: Traffic, ideal: Traffic) -> Truth:
    """Return what the faults cost, by comparison of the two simulations."""
    begin = world.start * world.seconds
    after, usual = (one.ttft[one.columns["arrival_s"] >= begin] for one in (seen, ideal))
    excess, tail = float(after.mean() - usual.mean()), float(np.quantile(after, 0.99) - np.quantile(usual, 0.99))
    return Truth(
        causes=tuple(name for name in world.faults if name != UNKNOWN),
        excess_mean_s=excess,
        excess_p99_s=tail,
        impact=max(excess / float(usual.mean()), tail / float(np.quantile(usual, 0.99))),
        nodes=(f"p{seen.sick[0]}", f"d{seen.sick[1]}"),
    )


def _bundle(world: Cluster, recorder: Recorder, seen: Traffic) -> Bundle:
    random = np.random.default_rng(world.seed + 77)
    keep = random.random(len(seen.ttft)) < recorder.sampling
    begin = world.start * world.seconds
    if recorder.whole:
        keep &= seen.columns["arrival_s"] >= begin
    rows = np.flatnonzero(keep)
    stages: dict[str, Floats] = dict(seen.stages)
    for name, parts in COARSER.get(recorder.granularity, {}).items():
        stages[name] = np.sum([stages.pop(part) for part in parts], axis=0)
    numbers: dict[str, Floats] = {**seen.columns, **stages, "ttft_s": seen.ttft}
    numbers["arrival_s"] = numbers["arrival_s"] + START_S
    roles = {f"p{k}": "prefill" for k in range(world.prefills)} | {f"d{k}": "decode" for k in range(world.decodes)}
    names = {role: tuple(name for name, one in roles.items() if one == role) for role in ("prefill", "decode")}
    series = _series(world, recorder, seen, roles, random)
    first = float(numbers["arrival_s"][rows[0]]) - 5
    if recorder.whole:
        series = tuple(
            replace(one, time_s=one.time_s[one.time_s > first], value=one.value[one.time_s > first]) for one in series
        )
    return Bundle(
        origin=f"{world}",
        requests=RequestColumns(
            ids=[f"r{row}" for row in rows.tolist()],
            numbers={name: values[rows] for name, values in numbers.items()},
            labels={
                "prefill_node": Labels(names["prefill"], seen.prefill[rows].astype(np.int32)),
                "decode_node": Labels(names["decode"], seen.decode[rows].astype(np.int32)),
            },
        ),
        series=series,
        metrics={
            one.metric: MetricInfo(kind="gauge" if _is_gauge(one.metric) else "counter", unit="") for one in series
        },
        roles=roles,
        sampling=recorder.sampling,
        incident_start_s=START_S + begin if recorder.announced and not recorder.whole else None,
    )


def _is_gauge(metric: str) -> bool:
    return metric.endswith(("depth", "in_flight", "gbps", "usage"))


def _series(
    world: Cluster, recorder: Recorder, seen: Traffic, roles: dict[str, str], random: np.random.Generator
) -> tuple[CounterSeries, ...]:
    grid = np.arange(0.0, world.seconds + 2.0)
    begin = world.start * world.seconds
    amounts: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for time_s, node, metric, amount in seen.events:
        amounts.setdefault((node, metric), []).append((time_s, amount))
    if world.decodes:
        for _ in range(recorder.decoys):
            node = str(random.choice(list(roles)))
            metric, per_s = _DECOYS[int(random.integers(0, len(_DECOYS)))]
            times = np.arange(begin, world.seconds, 1.0)
            amounts.setdefault((node, metric), []).extend((float(t), float(random.poisson(per_s))) for t in times)
    curves: dict[tuple[str, str], Floats] = {}
    for node, role in roles.items():
        for metric in COUNTERS[role]:
            points = sorted(amounts.get((node, metric), []))
            times, values = np.array([t for t, _ in points]), np.array([v for _, v in points])
            total = np.concatenate([[0.0], np.cumsum(values)])
            rare = np.cumsum(random.poisson(0.02, len(grid))) if metric.startswith("nic.") else 0.0
            curves[node, metric] = 1e6 + total[np.searchsorted(times, grid)] + rare
    curves |= _gauges(world, seen, roles, grid)
    offset = {node: random.uniform(-recorder.clocks_s, recorder.clocks_s) for node in roles}
    kept = []
    for (node, metric), values in curves.items():
        if metric in recorder.missing:
            continue
        present = random.random(len(grid)) > 0.02
        kept.append(
            CounterSeries(
                node=node,
                device=None,
                metric=metric,
                time_s=START_S + grid[present] + offset[node],
                value=values[present],
            )
        )
    return tuple(kept)


_DECOYS = (("nic.cnp", 30.0), ("conn.qp_created", 0.05), ("nic.out_of_sequence", 1.5), ("reg.mr_registered", 0.1))


def _gauges(world: Cluster, seen: Traffic, roles: dict[str, str], grid: Floats) -> dict[tuple[str, str], Floats]:
    stages, arrival = seen.stages, seen.columns["arrival_s"]
    queued = arrival + stages["queue_s"]
    ready = queued + stages["prefill_s"]
    admitted = ready + stages["admit_s"]
    pulling = admitted + stages["pull_wait_s"]
    curves: dict[tuple[str, str], Floats] = {}
    for node, role in roles.items():
        index = int(node[1:])
        if role == "prefill":
            rows = seen.prefill == index
            curves[node, "engine.prefill_queue_depth"] = _depth(arrival[rows], queued[rows], grid)
        else:
            rows = seen.decode == index
            curves[node, "engine.admit_queue_depth"] = _depth(ready[rows], admitted[rows], grid)
            curves[node, "engine.pull_queue_depth"] = _depth(admitted[rows], pulling[rows], grid)
            curves[node, "engine.pulls_in_flight"] = _depth(pulling[rows], seen.transfer[1][rows], grid)
        speed = np.full(len(grid), world.link_gbps)
        if "fabric.link_degraded" in world.faults and node == f"d{seen.sick[1]}":
            slow = np.interp(grid, arrival, seen.active.astype(float)) > 0.5
            speed = np.where(slow, world.link_gbps / (1 + 4 * world.faults["fabric.link_degraded"]), speed)
        curves[node, "nic.link_gbps"] = speed
    return curves


def _depth(start: Floats, stop: Floats, grid: Floats) -> Floats:
    """Return how many of the intervals hold each instant."""
    begun, ended = np.sort(start), np.sort(stop)
    return (np.searchsorted(begun, grid) - np.searchsorted(ended, grid)).astype(np.float64)
