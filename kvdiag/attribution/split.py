"""Which part of the period is the baseline and which the incident, and who said so."""

from dataclasses import dataclass

import numpy as np

from kvdiag.attribution.changepoint import THRESHOLD, ChangePoint, strongest_change
from kvdiag.attribution.frame import Floats
from kvdiag.derive.stages import StageMatrix
from kvdiag.errors import UsageError
from kvdiag.model.bundle import Bundle


@dataclass(frozen=True, slots=True, eq=False)
class Split:
    """`at_s` is None where nothing changed; `how` says in one line where the split comes from."""

    at_s: float | None
    how: str
    candidate: ChangePoint | None = None


def choose_split(bundle: Bundle, stages: StageMatrix, incident_start_s: float | None) -> Split:
    """Return the given start, else the bundle's announced one, else the strongest change point, else none.

    UsageError where `incident_start_s` lies outside the recorded arrivals.
    """
    arrival = bundle.requests.numbers["arrival_s"]
    first, last = float(arrival[0]), float(arrival[-1])
    if incident_start_s is not None:
        if not first < incident_start_s <= last:
            raise UsageError(
                f"--incident-start {incident_start_s:.3f} is outside the recorded arrivals, "
                f"{first:.3f} to {last:.3f} s; give a time on the bundle's own clock"
            )
        return Split(incident_start_s, f"given by the user: {_offset(incident_start_s, arrival)}")
    announced = bundle.incident_start_s
    if announced is not None and first < announced <= last:
        return Split(announced, f"announced in meta.json: {_offset(announced, arrival)}")
    why = "" if announced is None else "; the announced start lies outside the recorded arrivals"
    change, candidate = strongest_change(stages, arrival)
    if change is not None:
        how = (
            f"found by CUSUM in {change.series} (statistic {change.statistic:.2f}, threshold {THRESHOLD:g}; "
            f"mean {change.change_s * 1e3:+.3g} ms): {_offset(change.split_s, arrival)}"
        )
        return Split(change.split_s, how + why, change)
    if candidate is None:
        return Split(None, f"no change point: no series moved by 2 % of mean TTFT{why}")
    how = f"no change point: the strongest candidate, {candidate.series} at {_offset(candidate.split_s, arrival)}"
    return Split(None, f"{how}, has statistic {candidate.statistic:.2f} below {THRESHOLD:g}{why}", candidate)


def _offset(at_s: float, arrival: Floats) -> str:
    share = float(np.mean(arrival < at_s))
    return f"{at_s - arrival[0]:.1f} s after the first arrival ({share:.0%} of the requests before it)"
