"""How far each node's clock is off, from its own traffic: its NIC's bytes against the bytes of its requests.

Increments of the byte counter are correlated with what the requests' transfers would have added, shifted by every
offset within three seconds; the offset of the best correlation is the node's, if it is beyond chance.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from kvdiag.derive.counters import unwrapped
from kvdiag.derive.stages import StageMatrix
from kvdiag.model.bundle import Bundle, CounterSeries

Floats = NDArray[np.float64]

REACH_S = 3.0
"""Clocks may be off by up to 2 s (trace bundle format); one more shows that the best lies within."""
STEP_S = 0.125
LEAST_SCORE = 3.5
"""Correlation times the square root of the number of increments, its standard deviation under no relation being 1."""
LEAST_GAIN = 1.0
"""The same score must be that much above the one at the ends of the reach: otherwise load waves alone correlate."""
LEAST_INCREMENTS = 60
TABLE_STEP_S = 0.01
MOST_CELLS = 2_000_000
PAD_S = 0.75
"""Windows on counters of an aligned node are widened by that much: offsets are found to a quarter of a second, and
counters are read once a second."""
BYTES = {"prefill": "nic.tx_bytes", "decode": "nic.rx_bytes"}


@dataclass(frozen=True, slots=True)
class Offset:
    """A node's clock is ahead by `seconds`; `score` is the correlation times the root of the number of increments."""

    seconds: float
    score: float


def find_offsets(bundle: Bundle, stages: StageMatrix) -> dict[str, Offset]:
    """Return the offsets of the nodes whose own traffic shows them."""
    size = bundle.requests.number("bytes")
    if size is None:
        return {}
    stop = bundle.requests.numbers["arrival_s"] + stages.ttft_s
    first_step = stages.stage("first_step_s")
    if first_step is not None:
        stop = stop - first_step
    wire = next((one for n in ("wire_s", "transfer_s", "kv_wait_s") if (one := stages.stage(n)) is not None), None)
    start = stop if wire is None else stop - wire
    found: dict[str, Offset] = {}
    for role, metric in BYTES.items():
        labels = bundle.requests.labels.get(f"{role}_node")
        if labels is None:
            continue
        for code, node in enumerate(labels.names):
            rows = (labels.codes == code) & np.isfinite(size)
            series = [one for one in bundle.series if one.node == node and one.metric == metric]
            if not rows.any() or not series:
                continue
            offset = _offset(series, start[rows], stop[rows], size[rows])
            if offset is not None and (node not in found or found[node].score < offset.score):
                found[node] = offset
    return found


def _offset(series: list[CounterSeries], start: Floats, stop: Floats, size: Floats) -> Offset | None:
    # Half of the bytes at the begin, half at the end: transfers are short beside the counter's interval.
    moments = np.concatenate([start, stop])
    order = np.argsort(moments, kind="stable")
    moments = moments[order]
    moved = np.concatenate([[0.0], np.cumsum(np.concatenate([size, size])[order] / 2)])
    shifts = np.arange(-REACH_S, REACH_S + STEP_S / 2, STEP_S)
    covariance, own, expected, count = np.zeros(len(shifts)), 0.0, np.zeros(len(shifts)), 0
    for one in series:
        if len(one.time_s) < 3:
            continue
        seen = np.diff(unwrapped(one.value))
        seen = np.minimum(seen, np.quantile(seen, 0.99))
        seen = seen - seen.mean()
        due = np.diff(moved[_reached(moments, one.time_s, shifts)], axis=1)
        # Both are centred by what is centred already, and by the sums: the array of all shifts is passed over twice.
        covariance += due @ seen
        own += float(seen @ seen)
        expected += np.einsum("st,st->s", due, due) - due.sum(axis=1) ** 2 / len(seen)
        count += len(seen)
    if count < LEAST_INCREMENTS or own <= 0 or (expected <= 0).any():
        return None
    scores = covariance / np.sqrt(own * expected) * np.sqrt(count)
    best = int(scores.argmax())
    if not 0 < best < len(shifts) - 1:
        return None
    if scores[best] < LEAST_SCORE or scores[best] - max(scores[0], scores[-1]) < LEAST_GAIN:
        return None
    before, peak, after = scores[best - 1 : best + 2].tolist()
    bend = before - 2 * peak + after
    fine = 0.5 * (before - after) / bend if bend < 0 else 0.0
    return Offset(seconds=float(shifts[best] + fine * STEP_S), score=float(scores[best]))


def _reached(moments: Floats, time_s: Floats, shifts: Floats) -> NDArray[np.intp]:
    """Return how many of the sorted moments lie before each time less each shift, one row per shift."""
    # By hundredths of a second, a thirtieth of what offsets are good for: a table is ten times as quick as a search.
    first, last = float(time_s[0] - shifts[-1]), float(time_s[-1] - shifts[0])
    cells = int((last - first) / TABLE_STEP_S) + 2
    if cells > MOST_CELLS:
        return np.searchsorted(moments, time_s[None, :] - shifts[:, None])
    own = np.ceil((moments - first) * (1 / TABLE_STEP_S)).astype(np.int64)
    before = np.cumsum(np.bincount(np.clip(own, 0, cells), minlength=cells + 1))
    cell = ((time_s[None, :] - shifts[:, None]) - first) * (1 / TABLE_STEP_S)
    return before[cell.astype(np.int32)]


def aligned(bundle: Bundle, offsets: Mapping[str, Offset]) -> Bundle:
    """Return the bundle with the nodes' counters and events on the requests' clock."""
    if not offsets:
        return bundle
    series = tuple(
        replace(one, time_s=one.time_s - offsets[one.node].seconds) if one.node in offsets else one
        for one in bundle.series
    )
    events = tuple(
        replace(one, time_s=one.time_s - offsets[one.node].seconds)
        if one.node is not None and one.node in offsets
        else one
        for one in bundle.events
    )
    return replace(bundle, series=series, events=tuple(sorted(events, key=lambda one: one.time_s)))
