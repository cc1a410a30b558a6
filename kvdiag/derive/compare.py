"""Two recordings as one: the first is the baseline, the second what is asked about."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from kvdiag.derive.counters import unwrapped
from kvdiag.derive.stages import PARTS
from kvdiag.errors import InputError, UndeterminedError
from kvdiag.model.bundle import Bundle, CounterSeries, Labels, RequestColumns

Floats = NDArray[np.float64]

GAP_S = 1.0
"""Between the end of the first recording and the begin of the second, on the joint clock."""


def before_and_after(before: Bundle, after: Bundle) -> Bundle:
    """Return both recordings on one clock, the second right after the first; its incident is all of the second.

    Stages of the finer recording are added up to those of the coarser. InputError where one is of windows and the
    other of requests, UndeterminedError where they have no stage in common.
    """
    if (before.window_s is None) != (after.window_s is None):
        raise InputError(f"{before.origin} and {after.origin}: one is of windows, the other of requests; compare alike")
    ends = [_times(one) for one in (before, after)]
    shift = ends[0][1] + GAP_S - ends[1][0]
    first, second = (_coarsened(one, {*before.requests.numbers, *after.requests.numbers}) for one in (before, after))
    common = [name for name in first.numbers if name in second.numbers]
    if not any(name.endswith("_s") and name not in ("arrival_s", "ttft_s") for name in common):
        raise UndeterminedError(f"{before.origin} and {after.origin} have no stage of TTFT in common")
    keep = _thinned(before, after)
    parts = [(first, keep[0], 0.0), (second, keep[1], shift)]
    numbers = {name: np.concatenate([one.numbers[name][rows] for one, rows, _ in parts]) for name in common}
    numbers["arrival_s"] = np.concatenate([one.numbers["arrival_s"][rows] + by for one, rows, by in parts])
    labels = {
        name: _joined([first.labels[name], second.labels[name]], keep) for name in first.labels if name in second.labels
    }
    gauges = {name for one in (before, after) for name, info in one.metrics.items() if info.kind == "gauge"}
    left = sorted({*first.numbers, *second.numbers} - set(common))
    notes = [f"{one.origin}: {note}" for one in (before, after) for note in one.notes]
    if before.requests.ids == after.requests.ids and ends[0] == ends[1]:
        notes.insert(0, "both recordings hold the same requests: this compares a recording with itself")
    if left:
        notes.append(f"only in one of both recordings, and not used: {', '.join(left)}")
    ids = [f"{mark}{one.ids[row]}" for mark, (one, rows, _) in zip("ab", parts, strict=True) for row in rows.tolist()]
    return replace(
        before,
        origin=f"{before.origin} → {after.origin}",
        requests=RequestColumns(ids=ids, numbers=numbers, labels=labels),
        series=_series(before.series, after.series, gauges, ends[0][1] + GAP_S / 2, shift),
        metrics={**after.metrics, **before.metrics},
        events=(*before.events, *(replace(one, time_s=one.time_s + shift) for one in after.events)),
        roles={**before.roles, **after.roles},
        sampling=_sampling(before, after),
        incident_start_s=ends[1][0] + shift,
        notes=tuple(notes),
    )


def _times(bundle: Bundle) -> tuple[float, float]:
    arrival = bundle.requests.numbers["arrival_s"]
    return float(arrival[0]), float(arrival[-1]) + (bundle.window_s or 0.0)


def _coarsened(bundle: Bundle, names: set[str]) -> RequestColumns:
    """Add up stages to those that either recording has only as a sum."""
    numbers = dict(bundle.requests.numbers)
    for coarse in ("pre_transfer_s", "transfer_s", "kv_wait_s"):
        parts = (*PARTS[coarse], *(("pre_transfer_s", "transfer_s") if coarse == "kv_wait_s" else ()))
        fine = [name for name in parts if name in numbers]
        if coarse in names and coarse not in numbers and fine:
            numbers[coarse] = np.sum([np.nan_to_num(numbers.pop(name)) for name in fine], axis=0)
    return replace(bundle.requests, numbers=numbers)


def _sampling(before: Bundle, after: Bundle) -> float | None:
    known = [one.sampling for one in (before, after) if one.sampling is not None]
    return min(known) if known else None


def _thinned(before: Bundle, after: Bundle) -> list[NDArray[np.int64]]:
    """Return the rows to use: of the denser sample as many as if it were as sparse as the other."""
    share = _sampling(before, after)
    kept = []
    for one in (before, after):
        rows = np.arange(len(one.requests))
        if share is not None and one.sampling is not None and one.sampling > share:
            rows = rows[np.random.default_rng(0).random(len(rows)) < share / one.sampling]
        kept.append(rows)
    return kept


def _joined(labels: list[Labels], keep: list[NDArray[np.int64]]) -> Labels:
    names = tuple(dict.fromkeys(name for one in labels for name in one.names))
    places = [np.array([*(names.index(name) for name in one.names), -1], dtype=np.int32) for one in labels]
    codes = [place[one.codes[rows]] for place, one, rows in zip(places, labels, keep, strict=True)]
    return Labels(names, np.concatenate(codes))


def _series(
    before: Sequence[CounterSeries], after: Sequence[CounterSeries], gauges: set[str], middle_s: float, shift: float
) -> tuple[CounterSeries, ...]:
    """Join series of one name at `middle_s`; what a counter grew by between the recordings is left out."""
    earlier = [_cut(one, one.time_s < middle_s) for one in before]
    later = {}
    for one in after:
        moved = replace(one, time_s=one.time_s + shift)
        later[one.node, one.device, one.metric] = _cut(moved, moved.time_s >= middle_s)
    joined = []
    for one in earlier:
        other = later.pop((one.node, one.device, one.metric), None)
        if other is None or not len(other.value) or not len(one.value):
            joined.append(one if other is None or len(one.value) else other)
            continue
        values = (one.value, other.value)
        if one.metric not in gauges:
            first, second = unwrapped(one.value), unwrapped(other.value)
            values = (first, second - second[0] + first[-1])
        times = np.concatenate([one.time_s, other.time_s])
        joined.append(replace(one, time_s=times, value=np.concatenate(values)))
    return (*joined, *later.values())


def _cut(one: CounterSeries, kept: NDArray[np.bool_]) -> CounterSeries:
    return replace(one, time_s=one.time_s[kept], value=one.value[kept])
