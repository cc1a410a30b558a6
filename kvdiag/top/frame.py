"""One frame of all exporters: their tracks turned into the document, and how each exporter fares."""

from collections.abc import Sequence
from dataclasses import dataclass

from kvdiag.model.top import ExporterState, State, TopDocument
from kvdiag.report.json import head
from kvdiag.top import hosts, names, serving
from kvdiag.top.tracks import Track

LATE = 3.0
"""Intervals without an answer after which what is shown is called stale."""

FORGOTTEN_S = 300.0
"""Rows of an exporter that has been silent for so long are left out; the header still names it."""


@dataclass(slots=True)
class Watched:
    """An exporter, what was read of it, and why the last try failed (empty: it did not, or none has ended yet)."""

    url: str
    track: Track
    error: str = ""


def build(watched: Sequence[Watched], now_s: float, interval_s: float) -> TopDocument:
    """Return the document of one instant; `now_s` is monotonic."""
    shown = [
        (one.track, _old(one, now_s, interval_s))
        for one in watched
        if (age_s := _age(one, now_s)) is not None and age_s < FORGOTTEN_S
    ]
    fields = head("kvdiag.top/1")
    return TopDocument(
        version=fields["version"],
        host=fields["host"],
        time=fields["time"],
        exporters=tuple(_state(one, now_s, interval_s) for one in watched),
        pairs=serving.pairs(shown),
        engines=serving.engines(shown),
        ports=hosts.ports(shown),
        registration=hosts.registration(shown),
        queue_pairs=hosts.queue_pairs(shown),
        findings=hosts.findings(shown),
        causes=serving.causes(shown),
        missing=_missing([track for track, _ in shown]),
    )


def _age(one: Watched, now_s: float) -> float | None:
    return None if one.track.newest is None else max(0.0, now_s - one.track.newest.monotonic_s)


def _old(one: Watched, now_s: float, interval_s: float) -> bool:
    age_s = _age(one, now_s)
    return age_s is None or age_s > LATE * interval_s + 1.0


def _state(one: Watched, now_s: float, interval_s: float) -> ExporterState:
    age_s = _age(one, now_s)
    trouble = [one.error] if one.error else []
    broken = sorted(labels.get("collector", "") for labels, ok in one.track.gauges(names.SUCCESS) if ok == 0)
    if broken and not one.error:
        trouble.append(f"collectors that fail: {', '.join(broken)}")
    state: State = "fresh"
    if one.error:
        state = "failed"
    elif age_s is None:
        state = "waiting"
    elif broken or _old(one, now_s, interval_s):
        state = "stale"
    return ExporterState(
        url=one.url,
        state=state,
        data_age_s=age_s,
        window_s=one.track.elapsed_s,
        restarts=one.track.restarts,
        trouble=tuple(trouble),
    )


def _missing(tracks: Sequence[Track]) -> tuple[str, ...]:
    """Return what no exporter serves, and what would serve it."""
    if not tracks:
        return ()

    def none(*metrics: str) -> bool:
        return not any(True for track in tracks for name in metrics for _ in (*track.gauges(name), *track.growth(name)))

    told = []
    if none(f"{names.TTFT}_count"):
        told.append("pairs: no exporter has per-request records (docs/records.md)")
    if none(names.ENGINE_UP, names.METRICS_UP):
        told.append("engines: no exporter is told of any ([[engines]] in its configuration)")
    if none(names.PORT_UP):
        told.append("NICs: no exporter sees an RDMA port")
    if none(names.OBJECTS, names.QUEUE_PAIRS):
        told.append("registration, queue pairs: no exporter can read RDMA netlink, or nothing has any")
    return tuple(told)
