"""Sum a trace bundle up for drawing, with bounds that do not grow with its requests."""

import numpy as np
from numpy.typing import NDArray

from kvdiag.derive.counter_curves import cited_counters
from kvdiag.derive.pair_matrix import pair_matrix
from kvdiag.model.bundle import Bundle, RequestColumns
from kvdiag.model.diagnosis import Diagnosis
from kvdiag.model.overview import EventMark, Overview, Quantiles, TimeBin, Timeline, TimeSpan
from kvdiag.model.transfer import STAGES

Floats = NDArray[np.float64]
Rows = NDArray[np.bool_]

MOST_BINS = 240
LEAST_PER_BIN = 12
MOST_POINTS = 1500
"""Requests that are drawn one by one; of more, only the quantiles of bins are."""
MOST_EVENTS = 60
FLOOR_S = 1e-6
TTFT, HAND_OVER, TRANSFER = "TTFT", "KV hand-over", "Transfer"
"""The quantities: TTFT; everything from prefill's end until the KV cache is present; posting and the wire alone."""

_TAIL = np.concatenate([np.geomspace(1e-4, 0.02, 24), np.linspace(0.025, 0.5, 76)])
SHARES: Floats = np.unique(np.concatenate([[0.0], _TAIL, 1 - _TAIL, [1.0]]))
"""Where quantiles are drawn: evenly in the middle, by ratios towards both ends."""


def overview(bundle: Bundle, diagnosis: Diagnosis) -> Overview:
    """Return what a report draws of a bundle: at most MOST_BINS time bins and len(SHARES) quantiles per curve."""
    requests = bundle.requests
    arrival = requests.numbers["arrival_s"]
    first = float(arrival[0])
    since: Floats = arrival - first
    length = max(float(since[-1]), 1e-9)
    incident = _incident(since + first, diagnosis)
    quantities = quantities_of(requests)
    bins = int(np.clip(len(since) // LEAST_PER_BIN, 1, MOST_BINS))
    curves, no_counters = cited_counters(bundle, diagnosis, first, (0.0, length))
    events, all_events = _events(bundle, first)
    return Overview(
        first_arrival_s=first,
        length_s=length,
        requests=len(since),
        bin_s=length / bins,
        spans=_spans(diagnosis, incident is not None, first, length),
        distributions=tuple(
            one
            for name, values in quantities.items()
            for period, rows in _periods(incident, len(since))
            if (one := _quantiles(name, period, values[rows])) is not None
        ),
        pairs=pair_matrix(requests, quantities, incident),
        timelines=tuple(_timeline(name, since, values, length, bins) for name, values in quantities.items()),
        counters=curves,
        counters_missing=no_counters,
        events=events,
        binned=_binned(len(since), bins, length, len(events), all_events),
    )


def quantities_of(requests: RequestColumns) -> dict[str, Floats]:
    """Return what is drawn of requests, in seconds: TTFT, the KV hand-over, and the transfer where it is known apart.

    NaN where a request has none of a quantity's stages.
    """
    found = {TTFT: requests.numbers["ttft_s"]}
    before = ("queue_s", "prefill_s", "first_step_s")
    parts = {HAND_OVER: [name for name in STAGES if name not in before], TRANSFER: ["transfer_s", "post_s", "wire_s"]}
    for quantity, names in parts.items():
        columns = [requests.numbers[name] for name in names if name in requests.numbers]
        if columns:
            stacked = np.column_stack(columns)
            known = ~np.isnan(stacked).all(axis=1)
            found[quantity] = np.where(known, np.nansum(stacked, axis=1), np.nan)
    if TRANSFER in found and np.array_equal(found[TRANSFER], found[HAND_OVER], equal_nan=True):
        del found[TRANSFER]
    return found


def _incident(arrival: Floats, diagnosis: Diagnosis) -> Rows | None:
    """Return which requests belong to the incident; None where the whole period had to be explained."""
    if diagnosis.baseline is None or diagnosis.incident is None:
        return None
    start, end = diagnosis.incident.start_s, diagnosis.incident.end_s
    chosen: Rows = (arrival >= start) & ((arrival < end) | (end >= arrival[-1]))
    return chosen


def _periods(incident: Rows | None, count: int) -> tuple[tuple[str, Rows], ...]:
    if incident is None:
        return (("whole period", np.ones(count, dtype=bool)),)
    return (("baseline", ~incident), ("incident", incident))


def _spans(diagnosis: Diagnosis, split: bool, first: float, length: float) -> tuple[TimeSpan, ...]:
    if not split or diagnosis.incident is None:
        return (TimeSpan(period="whole period", start_s=0.0, end_s=length),)
    start = float(np.clip(diagnosis.incident.start_s - first, 0.0, length))
    end = float(np.clip(diagnosis.incident.end_s - first, start, length))
    edges = (("baseline", 0.0, start), ("incident", start, end), ("baseline", end, length))
    return tuple(TimeSpan(period=name, start_s=a, end_s=b) for name, a, b in edges if b > a)


def _quantiles(quantity: str, period: str, values: Floats) -> Quantiles | None:
    known = np.sort(values[np.isfinite(values)])
    if not len(known):
        return None
    if len(known) <= len(SHARES):
        value, share = known, np.arange(1, len(known) + 1) / len(known)
    else:
        value, share = np.quantile(known, SHARES), SHARES
    p50, p99 = np.quantile(known, (0.5, 0.99)).tolist()
    return Quantiles(
        quantity=quantity,
        period=period,
        count=len(known),
        value_s=tuple(np.maximum(value, FLOOR_S).tolist()),
        share=tuple(share.tolist()),
        p50_s=max(p50, FLOOR_S),
        p99_s=max(p99, FLOOR_S),
        floor_s=FLOOR_S,
        below_floor=int((known < FLOOR_S).sum()),
    )


def _timeline(quantity: str, since: Floats, values: Floats, length: float, bins: int) -> Timeline:
    known = np.isfinite(values)
    at, value = since[known], np.maximum(values[known], FLOOR_S)
    index = np.minimum((at / length * bins).astype(int), bins - 1)
    edges = np.searchsorted(index, np.arange(bins + 1))
    found = []
    for number in range(bins):
        part = value[edges[number] : edges[number + 1]]
        if len(part):
            p50, p99 = np.quantile(part, (0.5, 0.99)).tolist()
            middle = (number + 0.5) * length / bins
            found.append(TimeBin(middle_s=middle, requests=len(part), p50_s=p50, p99_s=p99))
    few = len(at) <= MOST_POINTS
    points = tuple(zip(at.tolist(), value.tolist(), strict=True)) if few else ()
    return Timeline(quantity=quantity, bins=tuple(found), points=points)


def _events(bundle: Bundle, first: float) -> tuple[tuple[EventMark, ...], int]:
    """Return events, those of one kind at one node within a hundredth of the recording as one; the rarest kinds first
    where there are more than MOST_EVENTS.
    """
    near = max(float(bundle.requests.numbers["arrival_s"][-1]) - first, 1e-9) / 100
    open_marks: dict[tuple[str, str], list[EventMark]] = {}
    for event in sorted(bundle.events, key=lambda one: (one.time_s, one.kind, one.node or "")):
        marks = open_marks.setdefault((event.kind or "event", event.node or ""), [])
        at = event.time_s - first
        if marks and at - marks[-1].at_s <= near:
            last = marks.pop()
            at, count, detail = last.at_s, last.count + 1, last.detail or event.detail or ""
        else:
            count, detail = 1, event.detail or ""
        kind, node = event.kind or "event", event.node or ""
        marks.append(EventMark(at_s=at, kind=kind, node=node, count=count, detail=detail))
    kinds = sorted(open_marks.values(), key=len)
    marks = [mark for same in kinds for mark in same][:MOST_EVENTS]
    return tuple(sorted(marks, key=lambda one: (one.at_s, one.kind, one.node))), sum(map(len, kinds))


def _binned(requests: int, bins: int, length: float, events: int, all_events: int) -> tuple[str, ...]:
    told = [f"timelines: {bins} bins of {length / bins:.3g} s, median and p99 of the requests that arrived in each"]
    if requests > MOST_POINTS:
        told.append(f"single requests are not drawn: {requests} are more than {MOST_POINTS}")
    if requests > len(SHARES):
        told.append(f"distributions: {len(SHARES)} quantiles of each, from all {requests} requests")
    if all_events > events:
        told.append(f"events: {events} marks of {all_events}, the rarest kinds first")
    return tuple(told)
