"""Values that cannot be: pure rules over the samples of two collections."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from kvdiag_exporters.catalog import Buckets, Sample

FASTER = 1.05
"""Above the link's rate by more than this is impossible: counters and clocks are read some milliseconds apart."""

SHORTEST_S = 0.5
"""Over a shorter time a rate is not judged: a driver refreshes its counters every 10 ms or so (mlx5 `lifespan`)."""

FEW = 10
"""A histogram of fewer new values is not judged by where they fall."""

COARSE_S = 0.1
"""vLLM's request latencies have 0.3 s as their first bound: a KV wait of 20 ms does not show."""

MOST_RANKS = 4096
"""A higher number is no rank."""

Key = tuple[str, tuple[str, ...]]
State = Mapping[Key, float | Buckets]


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """One series: why it is impossible or suspicious, with the numbers that show it; `drop` where it is impossible."""

    key: Key
    reason: str
    detail: str
    drop: bool


def state(samples: Iterable[Sample]) -> dict[Key, float | Buckets]:
    """Return the samples by series."""
    return {(one.metric.name, one.labels): one.value for one in samples}


def out_of_range(samples: Sequence[Sample]) -> list[Judged]:
    """Return shares outside 0 to 1, and negative counters, bytes and seconds."""
    found = []
    for metric, labels, value in samples:
        if isinstance(value, Buckets) or (value >= 0 and metric.unit != "ratio"):
            continue
        key = (metric.name, labels)
        if math.isnan(value):
            found.append(Judged(key=key, reason="not_a_number", detail="NaN", drop=True))
        elif metric.unit == "ratio" and not -1e-9 <= value <= 1 + 1e-6:
            found.append(Judged(key=key, reason="share_outside_0_to_1", detail=f"{value:g}", drop=True))
        elif value < 0 and (metric.kind == "counter" or metric.unit in ("bytes", "seconds")):
            found.append(Judged(key=key, reason="negative", detail=f"{value:g}", drop=True))
    return found


def contradictory(samples: Sequence[Sample]) -> list[Judged]:
    """Return histograms whose sum cannot be that of their buckets: of another unit.

    One value more or less is allowed: an exporter adds to sum and buckets one after the other.
    """
    found = []
    for metric, labels, value in samples:
        if not isinstance(value, Buckets) or sum(value.counts) < FEW:
            continue
        edges = (0.0, *value.bounds)
        largest = max(edges[min(place + 1, len(edges) - 1)] for place, count in enumerate(value.counts) if count)
        least = sum(count * edge for count, edge in zip(value.counts, edges, strict=True)) - largest
        most = math.inf if value.counts[-1] else sum(c * b for c, b in zip(value.counts, value.bounds, strict=False))
        if not least * (1 - 1e-9) <= value.sum <= (most + largest) * (1 + 1e-9):
            detail = f"sum {value.sum:g}, but its buckets allow {least:g} to {most + largest:g}"
            found.append(Judged(key=(metric.name, labels), reason="sum_outside_buckets", detail=detail, drop=True))
    return found


def outside_buckets(before: State, samples: Sequence[Sample]) -> list[Judged]:
    """Return histograms whose new values all lie above the last bound, or all below a first one of COARSE_S or more.

    Their quantiles say nothing, sum and count do.
    """
    found = []
    for metric, labels, value in samples:
        if not isinstance(value, Buckets) or not value.bounds:
            continue
        key = (metric.name, labels)
        new = _new_counts(before.get(key), value)
        if sum(new) < FEW:
            continue
        if not any(new[:-1]):
            detail = f"all {new[-1]} new values are above {value.bounds[-1]:g}"
            found.append(Judged(key=key, reason="above_all_buckets", detail=detail, drop=False))
        elif not any(new[1:]) and metric.unit == "seconds" and value.bounds[0] >= COARSE_S:
            detail = f"all {new[0]} new values are below {value.bounds[0]:g} s"
            found.append(Judged(key=key, reason="below_all_buckets", detail=detail, drop=False))
    return found


def _new_counts(old: float | Buckets | None, value: Buckets) -> tuple[int, ...]:
    """Return what was counted since `old`; everything where that was another histogram, or more."""
    if isinstance(old, Buckets) and old.bounds == value.bounds:
        new = tuple(now - was for was, now in zip(old.counts, value.counts, strict=True))
        if min(new) >= 0:
            return new
    return value.counts


def faster_than_links(before: State, samples: Sequence[Sample], rates: str, links: Mapping[str, float]) -> list[Judged]:
    """Return histograms of transfer speeds whose new values are, in the mean, above all links of their node together.

    `links` has the rate by node. It was not over these links, or only a part of each transfer was timed (SGLang's
    backends but NIXL, and all before 0.5.23, time what is left after the last chunk was queued).
    """
    found = []
    for metric, labels, value in samples:
        if metric.name != rates or not isinstance(value, Buckets) or not links.get(labels[0]):
            continue
        old = before.get((metric.name, labels))
        known = old if isinstance(old, Buckets) and old.sum <= value.sum else None
        count = sum(value.counts) - (sum(known.counts) if known else 0)
        mean = (value.sum - (known.sum if known else 0.0)) / count if count >= FEW else 0.0
        if mean > links[labels[0]] * FASTER:
            detail = f"{mean:.4g} B/s a transfer, all links of the node {links[labels[0]]:.4g} B/s"
            found.append(Judged(key=(metric.name, labels), reason="faster_than_links", detail=detail, drop=False))
    return found


def faster_than_link(before: State, after: State, elapsed_s: float, directions: Mapping[str, str]) -> list[Judged]:
    """Return byte counters that grew faster than their port's negotiated rate; `directions` counter → rate metric."""
    if elapsed_s < SHORTEST_S:
        return []
    found = []
    for (name, labels), value in after.items():
        rate_name = directions.get(name)
        old = before.get((name, labels))
        limit = after.get((rate_name, labels)) if rate_name else None
        if isinstance(value, Buckets) or isinstance(old, Buckets) or isinstance(limit, Buckets):
            continue
        if old is None or limit is None or value < old:
            continue
        speed = (value - old) / elapsed_s
        if limit > 0 and speed > limit * FASTER:
            detail = f"{speed:.4g} B/s over a link of {limit:.4g} B/s"
            found.append(Judged(key=(name, labels), reason="faster_than_link", detail=detail, drop=True))
    return found


def counts_without_bytes(before: State, after: State, sizes: str) -> list[Judged]:
    """Return size histograms that counted new transfers of no byte at all."""
    found = []
    for (name, labels), value in after.items():
        old = before.get((name, labels))
        if name != sizes or not isinstance(value, Buckets) or not isinstance(old, Buckets):
            continue
        new = sum(value.counts) - sum(old.counts)
        if new >= FEW and value.sum == old.sum:
            detail = f"{new} new transfers, and not one byte"
            found.append(Judged(key=(name, labels), reason="zero_with_traffic", detail=detail, drop=True))
    return found


def rank_gaps(ranks: Iterable[str], *, from_zero: bool) -> tuple[int, ...]:
    """Return the numbers missing between the lowest rank, or zero, and the highest; none where ranks are no numbers."""
    numbers = {int(rank) for rank in ranks if rank.isdecimal()}
    if not numbers or max(numbers) > MOST_RANKS:
        return ()
    return tuple(sorted(set(range(0 if from_zero else min(numbers), max(numbers) + 1)) - numbers))
