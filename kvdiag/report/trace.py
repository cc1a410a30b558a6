"""A timeline as Chrome trace events, which Perfetto (ui.perfetto.dev) and chrome://tracing open.

The format: "Trace Event Format", Google, docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU:
`X` complete slices, `i` instants, `C` counters, `M` names of processes and threads; times in microseconds.
"""

import json
import math
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from kvdiag.model.trace import Argument, Slice, Trace

_NS = 1_000_000_000
MARK = b'{"traceEvents":['
"""How the text of every trace begins."""


def encode(trace: Trace) -> str:
    """Return the trace as JSON text; its earliest moment is time 0, and what is not finite is left out.

    Slices that overlap on one track without one holding the other are dealt out to further tracks of the same name:
    viewers nest the slices of a track.
    """
    moments = [one.start_s for one in trace.slices] + [instant.at_s for instant in trace.instants]
    moments += [sample.at_s for sample in trace.counters]
    origin_s = min((moment for moment in moments if math.isfinite(moment)), default=0.0)
    names = _Names()
    events: list[dict[str, Any]] = []
    by_track: dict[tuple[str, str], list[tuple[int, int, Slice]]] = defaultdict(list)
    for one in trace.slices:
        if math.isfinite(one.start_s) and math.isfinite(one.duration_s):
            start_ns = _nanoseconds(one.start_s - origin_s)
            by_track[one.process, one.track].append((start_ns, start_ns + max(0, _nanoseconds(one.duration_s)), one))
    for (process, track), slices in by_track.items():
        for lane, start_ns, end_ns, one in _lanes(slices):
            name = track if lane == 0 else f"{track} ({lane + 1})"
            events.append(
                {
                    "ph": "X",
                    "name": one.name,
                    "cat": one.category,
                    **names.thread(process, name),
                    "ts": start_ns / 1000,
                    "dur": (end_ns - start_ns) / 1000,
                    "args": _arguments(one.arguments),
                }
            )
    events += [
        {
            "ph": "i",
            "name": instant.name,
            "cat": instant.category,
            **names.thread(instant.process, instant.track),
            "ts": _nanoseconds(instant.at_s - origin_s) / 1000,
            "s": "t",
            "args": _arguments(instant.arguments),
        }
        for instant in trace.instants
        if math.isfinite(instant.at_s)
    ]
    events += [
        {
            "ph": "C",
            "name": sample.name,
            **names.process(sample.process),
            "ts": _nanoseconds(sample.at_s - origin_s) / 1000,
            "args": {"value": sample.value},
        }
        for sample in trace.counters
        if math.isfinite(sample.at_s) and math.isfinite(sample.value)
    ]
    document = {
        "traceEvents": [*names.events, *sorted(events, key=lambda event: (event["ts"], -event.get("dur", 0.0)))],
        "displayTimeUnit": "ns",
        "otherData": trace.about,
    }
    return json.dumps(document, allow_nan=False, separators=(",", ":"))


class _Names:
    """Numbers processes and threads in the order of their appearance, and keeps the events that name them."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self._processes: dict[str, int] = {}
        self._threads: dict[tuple[str, str], int] = {}

    def process(self, name: str) -> dict[str, int]:
        if name not in self._processes:
            self._processes[name] = len(self._processes) + 1
            self._say("process_name", {"pid": self._processes[name]}, {"name": name})
        return {"pid": self._processes[name]}

    def thread(self, process: str, name: str) -> dict[str, int]:
        where = self.process(process)
        if (process, name) not in self._threads:
            self._threads[process, name] = len(self._threads) + 1
            found = where | {"tid": self._threads[process, name]}
            self._say("thread_name", found, {"name": name})
            self._say("thread_sort_index", found, {"sort_index": found["tid"]})
        return where | {"tid": self._threads[process, name]}

    def _say(self, what: str, where: dict[str, int], arguments: dict[str, Any]) -> None:
        self.events.append({"ph": "M", "name": what, **where, "args": arguments})


def _lanes(slices: Iterable[tuple[int, int, Slice]]) -> Iterable[tuple[int, int, int, Slice]]:
    """Give each slice the first lane where it lies inside the open slice, or after it."""
    open_ends: list[list[int]] = []
    for start_ns, end_ns, one in sorted(slices, key=lambda found: (found[0], -found[1])):
        for ends in open_ends:
            while ends and ends[-1] <= start_ns:
                ends.pop()
        free = (lane for lane, ends in enumerate(open_ends) if not ends or end_ns <= ends[-1])
        lane = next(free, len(open_ends))
        if lane == len(open_ends):
            open_ends.append([])
        open_ends[lane].append(end_ns)
        yield lane, start_ns, end_ns, one


def _nanoseconds(seconds: float) -> int:
    return round(seconds * _NS)


def _arguments(arguments: dict[str, Argument]) -> dict[str, Argument]:
    return {name: value for name, value in arguments.items() if not isinstance(value, float) or math.isfinite(value)}
