"""What hosts see: ports, registered memory, queue pairs, findings."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from kvdiag.model.finding import Severity
from kvdiag.model.top import FindingRow, PortRow, QueuePairRow, RegistrationRow
from kvdiag.top import names
from kvdiag.top.tracks import Track, added

_READY, _ERROR = "RTS", "ERR"
Key = tuple[str, ...]
Found = Mapping[Key, float | None]
Row = TypeVar("Row", PortRow, RegistrationRow, QueuePairRow)


def ports(tracks: Sequence[tuple[Track, bool]]) -> tuple[PortRow, ...]:
    """Return a row for each RDMA port, then for each network interface but loopback; rates in bytes per second."""
    found = [_once(tracks, one, lambda row: (row.node, row.device, row.port)) for one in (_rdma, _interfaces)]
    return tuple(row for rows in found for row in rows)


def _rdma(track: Track, old: bool) -> Iterable[PortRow]:
    by = ("node", "device", "port")
    up, speed = _gauge(track, names.PORT_UP, by), _gauge(track, names.PORT_SPEED, by)
    sent, received = (_rates(track, (name,), by) for name in (names.PORT_SENT, names.PORT_RECEIVED))
    counted = [
        _rates(track, one, by)
        for one in (names.RETRANSMITS, names.OUT_OF_SEQUENCE, names.CONGESTION, names.PORT_ERRORS)
    ]
    for key in sorted(up.keys() | sent.keys()):
        yield PortRow(
            node=key[0],
            device=key[1],
            port=key[2],
            up=up.get(key),
            speed_bytes_per_s=speed.get(key),
            transmit_bytes_per_s=sent.get(key),
            receive_bytes_per_s=received.get(key),
            transmit_ratio=_ratio(sent.get(key), speed.get(key)),
            receive_ratio=_ratio(received.get(key), speed.get(key)),
            retransmits_per_s=counted[0].get(key),
            out_of_sequence_per_s=counted[1].get(key),
            congestion_per_s=counted[2].get(key),
            errors_per_s=counted[3].get(key),
            stale=old,
        )


def _interfaces(track: Track, old: bool) -> Iterable[PortRow]:
    by = ("node", "device", "engine")
    up, speed = _gauge(track, names.NETDEV_UP, by), _gauge(track, names.NETDEV_SPEED, by)
    sent, received = (_rates(track, (name,), by) for name in (names.NETDEV_SENT, names.NETDEV_RECEIVED))
    errors, paused = _rates(track, names.NETDEV_ERRORS, by), _longest_pause(track)
    for key in sorted(up.keys() | sent.keys()):
        node, device, engine = key
        if device == "lo":
            continue
        yield PortRow(
            node=node,
            device=f"{device}@{engine}" if engine else device,  # that of a network namespace of the engine's own
            port="",
            up=up.get(key),
            speed_bytes_per_s=speed.get(key),
            transmit_bytes_per_s=sent.get(key),
            receive_bytes_per_s=received.get(key),
            transmit_ratio=_ratio(sent.get(key), speed.get(key)),
            receive_ratio=_ratio(received.get(key), speed.get(key)),
            paused_ratio=paused.get((node, device)),
            errors_per_s=errors.get(key),
            stale=old,
        )


def _longest_pause(track: Track) -> dict[Key, float]:
    """Return the share of time that the most paused priority of each interface was paused, either way."""
    found: dict[Key, float] = {}
    for labels, rate in track.rates(names.PAUSED):
        if rate is not None:
            key = (labels.get("node", ""), labels.get("device", ""))
            found[key] = max(rate, found.get(key, 0.0))
    return found


def registration(tracks: Sequence[tuple[Track, bool]]) -> tuple[RegistrationRow, ...]:
    """Return a row for each engine over all devices of its host, and for the window of each GPU."""
    return tuple(_once(tracks, _registered, lambda row: (row.node, row.subject)))


def _registered(track: Track, old: bool) -> Iterable[RegistrationRow]:
    by = ("engine",)
    regions = _gauge(track, names.OBJECTS, by, kind="mr")
    lengths = _gauge(track, names.REGION_BYTES, by)
    seen, gone = _rates(track, (names.REGIONS_SEEN,), by), _rates(track, (names.REGIONS_GONE,), by)
    pinned, limit = _gauge(track, names.PINNED, by), _gauge(track, names.PINNED_LIMIT, by)
    ratio = _gauge(track, names.PINNED_RATIO, by)
    refused = added([rate for _, rate in track.rates(names.REFUSED)])
    fullest = max((v for labels, v in track.gauges(names.USED_RATIO) if labels.get("kind") == "mr"), default=None)
    nodes = {labels["engine"]: labels["node"] for labels, _ in track.gauges(names.REGION_BYTES)}
    nodes |= {labels["engine"]: labels["node"] for labels, _ in track.gauges(names.OBJECTS)}
    nodes |= {labels["engine"]: labels["node"] for labels, _ in track.gauges(names.PINNED)}
    for engine, node in sorted(nodes.items()):
        key: Key = (engine,)
        if key not in regions and key not in pinned and not seen.get(key):
            continue
        yield RegistrationRow(
            node=node,
            subject=engine,
            kind="engine",
            regions=regions.get(key),
            region_bytes=lengths.get(key),
            registered_per_s=seen.get(key),
            deregistered_per_s=gone.get(key),
            refused_per_s=refused,
            pinned_bytes=pinned.get(key),
            pinned_limit_bytes=limit.get(key),
            pinned_ratio=ratio.get(key),
            regions_ratio=fullest,
            stale=old,
        )
    gpu: Key = ("node", "gpu")
    window, used, share = (_gauge(track, one, gpu) for one in (names.WINDOW, names.WINDOW_USED, names.WINDOW_RATIO))
    for key in sorted(window):
        yield RegistrationRow(
            node=key[0],
            subject=key[1],
            kind="gpu",
            pinned_bytes=used.get(key),
            pinned_limit_bytes=window.get(key),
            pinned_ratio=share.get(key),
            stale=old,
        )


def queue_pairs(tracks: Sequence[tuple[Track, bool]]) -> tuple[QueuePairRow, ...]:
    """Return a row for each engine on each device, with the device's headroom."""
    return tuple(_once(tracks, _queued, lambda row: (row.node, row.device, row.engine)))


def _queued(track: Track, old: bool) -> Iterable[QueuePairRow]:
    by = ("node", "device", "engine")
    total = _gauge(track, names.QUEUE_PAIRS, by)
    ready, error = (_gauge(track, names.QUEUE_PAIRS, by, state=one) for one in (_READY, _ERROR))
    seen, gone = _rates(track, (names.PAIRS_SEEN,), by), _rates(track, (names.PAIRS_GONE,), by)
    device = ("node", "device")
    share, limit = (_gauge(track, one, device, kind="qp") for one in (names.USED_RATIO, names.LIMIT))
    for key in sorted(total):
        whole, fit, bad = total[key] or 0.0, ready.get(key) or 0.0, error.get(key) or 0.0
        yield QueuePairRow(
            node=key[0],
            device=key[1],
            engine=key[2],
            total=whole,
            ready=fit,
            error=bad,
            other=whole - fit - bad,
            created_per_s=seen.get(key),
            gone_per_s=gone.get(key),
            used_ratio=share.get(key[:2]),
            limit=limit.get(key[:2]),
            stale=old,
        )


def findings(tracks: Sequence[tuple[Track, bool]]) -> tuple[FindingRow, ...]:
    """Return every finding that holds, the gravest first, with its summary and action where the health told them."""
    found: dict[Key, FindingRow] = {}
    for track, old in tracks:
        told = track.newest.health.get("findings") if track.newest else None
        texts: list[Any] = told if isinstance(told, list) else []
        explained = {
            tuple(str(one.get(name, "")) for name in ("node", "code", "severity", "subject")): one
            for one in texts
            if isinstance(one, dict)
        }
        for labels, value in track.gauges(names.FINDING):
            key = tuple(labels.get(name, "") for name in ("node", "code", "severity", "subject"))
            if value > 0 and (key not in found or not old):
                text = explained.get(key, {})
                found[key] = FindingRow(
                    node=key[0],
                    code=key[1],
                    severity=key[2],
                    subject=key[3],
                    summary=str(text.get("summary", "")),
                    action=str(text.get("action", "")),
                    stale=old,
                )
    return tuple(sorted(found.values(), key=lambda one: (_rank(one.severity), one.code, one.node, one.subject)))


def _rank(severity: str) -> int:
    return Severity(severity).rank if severity in [one.value for one in Severity] else len(Severity)


def _once(
    tracks: Sequence[tuple[Track, bool]], rows: Callable[[Track, bool], Iterable[Row]], key: Callable[[Row], Key]
) -> list[Row]:
    """Return each thing once: two exporters on one host read the same counters, which are not to be added up."""
    found: dict[Key, Row] = {}
    for track, old in sorted(tracks, key=lambda one: one[1]):
        for row in rows(track, old):
            found.setdefault(key(row), row)
    return [found[one] for one in sorted(found)]


def _gauge(track: Track, name: str, by: Key, **where: str) -> dict[Key, float]:
    found: dict[Key, float] = {}
    for labels, value in track.gauges(name):
        if all(labels.get(label) == text for label, text in where.items()):
            key = tuple(labels.get(label, "") for label in by)
            found[key] = found.get(key, 0.0) + value
    return found


def _rates(track: Track, metrics: Sequence[str], by: Key) -> dict[Key, float | None]:
    found: dict[Key, float | None] = {}
    for name in metrics:
        for labels, rate in track.rates(name):
            key = tuple(labels.get(label, "") for label in by)
            found[key] = added([found.get(key), rate])
    return found


def _ratio(rate: float | None, speed: float | None) -> float | None:
    return rate / speed if rate is not None and speed else None
