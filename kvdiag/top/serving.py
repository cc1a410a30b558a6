"""What requests see: pairs of nodes and engines."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from kvdiag.model.top import EngineRow, PairRow
from kvdiag.top import names
from kvdiag.top.tracks import Grown, Track, added

_NO_FAILURE = ("prefill_retry", "session_recovery")
"""What was tried again or taken back is no failure of a transfer; nor is what has `cancel` in its name."""

Pair = tuple[str, str, str]


def pairs(tracks: Sequence[tuple[Track, bool]]) -> tuple[PairRow, ...]:
    """Return a row for each pair of nodes that any exporter has records of; what several count is added up.

    `tracks` come with whether they are stale. The transfer is the stage wire, or transfer where sources see no finer.
    """
    found: dict[Pair, dict[str, list[Grown | None]]] = defaultdict(lambda: defaultdict(list))
    rates: dict[Pair, dict[str, list[float | None]]] = defaultdict(lambda: defaultdict(list))
    stale: dict[Pair, bool] = {}
    failures = _failures_by_node(tracks)
    for track, old in tracks:
        for name in (names.TTFT, names.STAGE, names.SIZE):
            for labels, grown in track.histograms(name):
                if name == names.STAGE and labels.get("stage") not in ("wire", "transfer"):
                    continue
                pair = (labels.get("prefill_node", ""), labels.get("decode_node", ""), labels.get("direction", ""))
                found[pair][name].append(grown)
                stale[pair] = stale.get(pair, True) and old
                if grown is not None and track.elapsed_s:
                    rates[pair][name].append((grown.sum if name == names.SIZE else grown.count) / track.elapsed_s)
    rows = []
    for pair, parts in sorted(found.items()):
        ttft, transfer = _sum(parts[names.TTFT]), _sum(parts[names.STAGE])
        rows.append(
            PairRow(
                prefill_node=pair[0],
                decode_node=pair[1],
                direction=pair[2],
                requests_per_s=added(rates[pair][names.TTFT]),
                transfers=None if transfer is None else transfer.count,
                transfer_p50_s=_quantile(transfer, 0.5),
                transfer_p99_s=_quantile(transfer, 0.99),
                bytes_per_s=added(rates[pair][names.SIZE]),
                ttft_p50_s=_quantile(ttft, 0.5),
                ttft_p99_s=_quantile(ttft, 0.99),
                transfer_share=_share(transfer, ttft),
                failures_per_s=added([failures.get(node) for node in dict.fromkeys(pair[:2])]),
                stale=stale[pair],
            )
        )
    return tuple(rows)


def causes(tracks: Sequence[tuple[Track, bool]]) -> dict[str, float]:
    """Return each cause's share of the variance of TTFT, the greatest that any fresh exporter says."""
    found: dict[str, float] = {}
    for track, old in tracks:
        for labels, value in track.gauges(names.CAUSES):
            if not old:
                cause = labels.get("cause", "")
                found[cause] = max(value, found.get(cause, value))
    return dict(sorted(found.items(), key=lambda one: -one[1]))


def engines(tracks: Sequence[tuple[Track, bool]]) -> tuple[EngineRow, ...]:
    """Return a row for each engine and each source that times its transfers, ranks and kinds added up."""
    return tuple(row for track, old in tracks for row in _engines_of(track, old))


def _engines_of(track: Track, old: bool) -> Iterator[EngineRow]:
    heads: dict[tuple[str, str], str] = {}
    for name in (names.ENGINE_UP, names.METRICS_UP):
        for labels, _ in track.gauges(name):
            heads[labels["node"], labels["engine"]] = labels.get("role", "")
    timed: dict[tuple[str, str, str], list[Grown | None]] = defaultdict(list)
    for name in (names.ENGINE_TRANSFER, names.NIXL_TRANSFER):
        for labels, grown in track.histograms(name):
            heads.setdefault((labels["node"], labels["engine"]), labels.get("role", ""))
            if labels.get("kind") != "nixl_post":
                source = labels.get("source", "nixl telemetry")
                timed[labels["node"], labels["engine"], source].append(grown)
    for node, engine in sorted(heads):
        sources = sorted(source for one, name, source in timed if (one, name) == (node, engine)) or [""]
        for source in sources:
            transfer = _sum(timed.get((node, engine, source), []))
            yield EngineRow(
                node=node,
                engine=engine,
                role=heads[node, engine],
                source=source,
                up=_least(track, (names.ENGINE_UP, names.METRICS_UP), node, engine),
                transfers=None if transfer is None else transfer.count,
                transfer_p50_s=_quantile(transfer, 0.5),
                transfer_p99_s=_quantile(transfer, 0.99),
                bytes_per_s=_throughput(track, node, engine, source),
                failures_per_s=_rate(track, names.ENGINE_FAILURES, node, engine),
                expired_per_s=_rate(track, names.ENGINE_EXPIRED, node, engine),
                waiting=added(
                    [
                        value
                        for labels, value in track.gauges(names.ENGINE_REQUESTS)
                        if _of(labels, node, engine) and labels.get("kind") == "waiting"
                    ]
                ),
                ttft_p99_s=_quantile(
                    _sum(
                        [
                            grown
                            for labels, grown in track.histograms(names.ENGINE_REQUEST)
                            if _of(labels, node, engine) and labels.get("kind") == "ttft"
                        ]
                    ),
                    0.99,
                ),
                carrier="+".join(
                    sorted(
                        {
                            labels["transport"]
                            for labels, value in track.gauges(names.CARRIER)
                            if labels.get("node") == node and value > 0 and labels["transport"] != "unknown"
                        }
                    )
                ),
                stale=old,
            )


def _throughput(track: Track, node: str, engine: str, source: str) -> float | None:
    if source == "nixl telemetry":
        return added([_rate(track, name, node, engine) for name in (names.NIXL_SENT, names.NIXL_READ)])
    sums = [
        rate
        for labels, rate in track.rates(f"{names.ENGINE_SIZE}_sum")
        if _of(labels, node, engine) and labels.get("source") == source
    ]
    moved = [
        rate
        for labels, rate in track.rates(names.ENGINE_MOVED)
        if _of(labels, node, engine) and labels.get("source") == source
    ]
    return added(sums) if added(sums) is not None else added(moved)


def _failures_by_node(tracks: Sequence[tuple[Track, bool]]) -> dict[str, float]:
    """Return failures per second by node: the engines' own count, else that of single handles."""
    found: dict[str, float] = {}
    for name in (names.HANDLE_FAILURES, names.ENGINE_FAILURES):
        of_this: dict[str, float] = defaultdict(float)
        for track, _ in tracks:
            for labels, rate in track.rates(name):
                if rate is not None and _fails(labels):
                    of_this[labels.get("node", "")] += rate
        found |= of_this
    return found


def _fails(labels: Mapping[str, str]) -> bool:
    kind = labels.get("kind", "")
    return kind not in _NO_FAILURE and "cancel" not in kind


def _rate(track: Track, name: str, node: str, engine: str) -> float | None:
    return added([rate for labels, rate in track.rates(name) if _of(labels, node, engine) and _fails(labels)])


def _least(track: Track, metrics: Sequence[str], node: str, engine: str) -> float | None:
    values = [value for name in metrics for labels, value in track.gauges(name) if _of(labels, node, engine)]
    return min(values, default=None)


def _of(labels: Mapping[str, str], node: str, engine: str) -> bool:
    return labels.get("node") == node and labels.get("engine") == engine


def _sum(parts: Sequence[Grown | None]) -> Grown | None:
    present = [one for one in parts if one is not None]
    total = present[0] if present else None
    for one in present[1:]:
        assert total is not None
        total += one
    return total


def _quantile(grown: Grown | None, q: float) -> float | None:
    return None if grown is None else grown.quantile(q)


def _share(part: Grown | None, whole: Grown | None) -> float | None:
    """Return the mean of one as a share of the mean of the other; None where either counted nothing."""
    if part is None or whole is None or not part.count or not whole.count or not whole.sum:
        return None
    return (part.sum / part.count) / (whole.sum / whole.count)
