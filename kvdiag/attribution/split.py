"""Which part of the period is the baseline and which the incident, and who said so."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from kvdiag.attribution.changepoint import OUTSIDE_THRESHOLD, THRESHOLD, ChangePoint, changes, strongest_change
from kvdiag.attribution.frame import Floats
from kvdiag.derive.stages import WITHOUT_QUEUE, StageMatrix
from kvdiag.errors import UsageError
from kvdiag.model.bundle import Bundle, CounterSeries

TELLING = ("nic.retransmits", "nic.ack_timeouts", "host.tcp_rx_bytes")
"""Next to nothing until packets are lost, or go over TCP instead of RDMA."""
PERHAPS = 1.0
"""Few requests, or a fault that comes in bursts, make no change point. From this statistic on (chance makes one in four
recordings) its place is worth a try: what is named against what came before needs evidence of its own."""
CHANCE = 3.0
"""Standard errors, as if requests were independent: bursts make the true ones larger."""
LEAST_PERIOD = 0.1
"""Neither period may hold less than a tenth of the requests, where both were only found."""


@dataclass(frozen=True, slots=True, eq=False)
class Split:
    """The incident lasts from `at_s` (None: nothing changed) to before `stop_s`; `how` says who told, in one line."""

    at_s: float | None
    how: str
    candidate: ChangePoint | None = None
    stop_s: float = np.inf


def choose_split(
    bundle: Bundle, stages: StageMatrix, incident_start_s: float | None, incident_end_s: float | None = None
) -> Split:
    """Return the given start, else the bundle's announced one, else what change points separate, else none.

    UsageError where `incident_start_s` or `incident_end_s` lies outside the arrivals, or they are not in order.
    """
    arrival = bundle.requests.numbers["arrival_s"]
    first, last = float(arrival[0]), float(arrival[-1])
    if incident_end_s is not None and incident_start_s is None:
        raise UsageError("--incident-end needs --incident-start: give both, on the bundle's own clock")
    if incident_start_s is not None:
        _inside("--incident-start", incident_start_s, first, last)
        stop = np.inf
        until = ""
        if incident_end_s is not None:
            _inside("--incident-end", incident_end_s, first, last)
            if incident_end_s <= incident_start_s:
                raise UsageError(
                    f"--incident-end {incident_end_s:.3f} is not after --incident-start {incident_start_s:.3f}"
                )
            stop, until = incident_end_s, f"; until {_offset(incident_end_s, arrival)}"
        return Split(incident_start_s, f"given by the user: {_offset(incident_start_s, arrival)}{until}", None, stop)
    announced = bundle.incident_start_s
    if announced is not None and first < announced <= last:
        return Split(announced, f"announced with the recording: {_offset(announced, arrival)}")
    why = "" if announced is None else "; the announced start lies outside the recorded arrivals"
    change, candidate = strongest_change(stages, arrival, _telling(bundle), _fragments(bundle))
    if change is not None:
        return _between_changes(stages, arrival, change, why)
    if candidate is None:
        return Split(None, f"no change point: no series moved by 2 % of mean TTFT{why}")
    how = f"no change point: the strongest candidate, {candidate.series} at {_offset(candidate.split_s, arrival)}"
    return Split(None, f"{how}, has statistic {candidate.statistic:.2f} below {THRESHOLD:g}{why}", candidate)


def perhaps(split: Split) -> Split | None:
    """Return the split at a change point that chance might have made too, where there is one and TTFT rose with it.

    It is worth no more than what is found on both sides of it.
    """
    one = split.candidate
    if split.at_s is not None or one is None or one.statistic < PERHAPS or one.change_s <= 0:
        return None
    how = split.how.replace("no change point", "no clear change point", 1)
    return Split(one.split_s, f"{how}; but what is named below changed with it", one, one.stop_s)


def _telling(bundle: Bundle) -> dict[str, Callable[[Floats], Floats]]:
    """Return the totals over time of each node's and port's TELLING counters."""
    return {
        " ".join(filter(None, (one.metric, "@", one.node, one.device))): partial(_total, one)
        for one in bundle.series
        if one.metric in TELLING and int(np.isfinite(one.value).sum()) > 1
    }


def _fragments(bundle: Bundle) -> dict[str, Floats]:
    """Return each request's descriptors per byte, by logarithm, where it is known of every one of them."""
    descriptors, size = bundle.requests.number("descriptors"), bundle.requests.number("bytes")
    if descriptors is None or size is None or not bool(((descriptors > 0) & (size > 0)).all()):
        return {}
    return {"descriptors per byte": np.log(descriptors / size)}


def _total(series: CounterSeries, at_s: Floats) -> Floats:
    known = np.isfinite(series.value)
    total: Floats = np.interp(at_s, series.time_s[known], series.value[known])
    return total


def _between_changes(stages: StageMatrix, arrival: Floats, change: ChangePoint, why: str) -> Split:
    """Return the stretch between two change points (or an end) that differs most from the rest, and is the worse."""
    driven = change.series not in (WITHOUT_QUEUE, *stages.names)
    # What drives the stages says when it began and ended; how bad it was at which time is another matter.
    found = (change,) if driven else changes(stages, arrival, change)
    ends = {end for one in found for end in (one.split_s, one.stop_s) if np.isfinite(end)}
    edges = [-np.inf, *sorted(ends), np.inf]
    series = stages.ttft_s if driven else stages.series(change.series)
    best: tuple[float, float, float] | None = None
    for i, begin in enumerate(edges[:-1]):
        for stop in edges[i + 1 :]:
            inside = (arrival >= begin) & (arrival < stop)
            share = float(inside.mean())
            if not LEAST_PERIOD <= share <= 1 - LEAST_PERIOD:
                continue
            contrast = abs(series[inside].mean() - series[~inside].mean()) * np.sqrt(share * (1 - share))
            if _worse(stages.ttft_s, series, inside) and (best is None or contrast > best[0]):
                best = (float(contrast), begin, stop)
    threshold = OUTSIDE_THRESHOLD if driven else THRESHOLD
    how = "found by CUSUM: " + "; ".join(
        f"{one.series} (statistic {one.statistic:.2f}, threshold {threshold:g}; mean {one.change_s * 1e3:+.3g} ms) "
        f"{_offset(one.split_s, arrival)}"
        + (f" until {one.stop_s - arrival[0]:.1f} s" if np.isfinite(one.stop_s) else "")
        for one in found
    )
    if best is None:
        return Split(change.split_s, how + why, change)
    _, begin, stop = best
    if np.isfinite(begin) and np.isfinite(stop) and _goes_on(stages, arrival, begin, stop):
        return Split(float(begin), f"{how}; after the worst, until {stop - arrival[0]:.1f} s, it goes on{why}", change)
    if begin == -np.inf:
        how += "; what comes first is the worse, and what follows the baseline"
    elif stop < np.inf:
        how += f"; from {begin - arrival[0]:.1f} to {stop - arrival[0]:.1f} s is the worse, the rest the baseline"
    return Split(float(begin), how + why, change, float(stop))


def _worse(ttft_s: Floats, series: Floats, inside: NDArray[np.bool_]) -> bool:
    """Whether requests waited longer inside; where that is within chance, whether what changed took longer there."""
    rise = float(ttft_s[inside].mean() - ttft_s[~inside].mean())
    chance = np.sqrt(ttft_s[inside].var() / inside.sum() + ttft_s[~inside].var() / (~inside).sum())
    if abs(rise) < CHANCE * chance:
        rise = float(series[inside].mean() - series[~inside].mean())
    return rise >= 0


def _goes_on(stages: StageMatrix, arrival: Floats, begin: float, stop: float) -> bool:
    """Whether what follows a stretch is worse than what came before it: with the stretch cut out, it still changes."""
    rest = (arrival < begin) | (arrival >= stop)
    joined = np.where(arrival >= stop, arrival - (stop - begin), arrival)[rest]
    change, _ = strongest_change(stages.rows(rest), joined)
    near = LEAST_PERIOD * float(arrival[-1] - arrival[0])
    return (
        change is not None and change.change_s > 0 and abs(change.split_s - begin) <= near and change.stop_s == np.inf
    )


def _inside(flag: str, given_s: float, first: float, last: float) -> None:
    if not first < given_s <= last:
        raise UsageError(
            f"{flag} {given_s:.3f} is outside the recorded arrivals, "
            f"{first:.3f} to {last:.3f} s; give a time on the bundle's own clock"
        )


def _offset(at_s: float, arrival: Floats) -> str:
    share = float(np.mean(arrival < at_s))
    since_s = at_s - arrival[0]
    return f"{since_s:.1f} s after the first arrival, at {at_s:.3f} ({share:.0%} of the requests before it)"
