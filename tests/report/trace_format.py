"""The rules of Chrome trace events that Perfetto's importer relies on, held strictly: nothing else may be there."""

import json
from collections import defaultdict
from typing import Any

from jsonschema import Draft202012Validator

_COUNT = {"type": "integer", "minimum": 1}
_TIME = {"type": "number", "minimum": 0}
_NAME = {"type": "string", "minLength": 1}
_ARGUMENTS = {"type": "object", "additionalProperties": {"type": ["string", "number"]}}


def _object(required: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": required, "required": list(required), "additionalProperties": False}


def _event(required: dict[str, Any]) -> Draft202012Validator:
    return Draft202012Validator(_object(required))


_WHERE = {"pid": _COUNT, "tid": _COUNT}
_TOLD = {"ph": {}, "name": _NAME, "cat": _NAME, **_WHERE, "ts": _TIME, "args": _ARGUMENTS}
_EVENTS = {
    "X": _event(_TOLD | {"dur": _TIME}),
    "i": _event(_TOLD | {"s": {"const": "t"}}),
    "C": _event(
        {
            "ph": {},
            "name": _NAME,
            "pid": _COUNT,
            "ts": _TIME,
            "args": _object({"value": {"type": "number"}}),
        }
    ),
}
_NAMES = {
    "process_name": _event({"ph": {}, "name": {}, "pid": _COUNT, "args": _object({"name": _NAME})}),
    "thread_name": _event({"ph": {}, "name": {}, **_WHERE, "args": _object({"name": _NAME})}),
    "thread_sort_index": _event({"ph": {}, "name": {}, **_WHERE, "args": _object({"sort_index": _COUNT})}),
}
_DOCUMENT = _event(
    {
        "traceEvents": {"type": "array"},
        "displayTimeUnit": {"enum": ["ms", "ns"]},
        "otherData": {"type": "object", "additionalProperties": {"type": "string"}},
    }
)


def events_of(text: str) -> list[dict[str, Any]]:
    """Return the events of a trace that keeps every rule; fails at the first that does not."""
    document = json.loads(text, parse_constant=_no_constant)
    _DOCUMENT.validate(document)
    processes: dict[int, str] = {}
    threads: dict[tuple[int, int], str] = {}
    slices: dict[tuple[int, int], list[tuple[float, float]]] = defaultdict(list)
    last = 0.0
    for event in document["traceEvents"]:
        kind = event.get("ph")
        (_NAMES[event["name"]] if kind == "M" else _EVENTS[kind]).validate(event)
        where = event["pid"], event.get("tid", 0)
        if kind == "M":
            if event["name"] == "process_name":
                assert event["pid"] not in processes and event["args"]["name"] not in processes.values()
                processes[event["pid"]] = event["args"]["name"]
            elif event["name"] == "thread_name":
                assert where not in threads and event["pid"] in processes
                threads[where] = event["args"]["name"]
            continue
        assert event["pid"] in processes and (kind == "C" or where in threads)
        assert event["ts"] >= last, "events are in the order of time"
        last = event["ts"]
        if kind == "X":
            slices[where].append((event["ts"], event["ts"] + event["dur"]))
    for found in slices.values():
        _nest(found)
    return list(document["traceEvents"])


def tracks(events: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Return the slices by the name of their track."""
    names = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            found[names[event["tid"]]].append(event)
    return found


def _nest(slices: list[tuple[float, float]]) -> None:
    """Assert that of two slices of one track one holds the other, or they do not overlap (to the nanosecond)."""
    nanosecond = 1e-3
    open_ends: list[float] = []
    for start, end in slices:
        while open_ends and open_ends[-1] <= start + nanosecond / 2:
            open_ends.pop()
        assert not open_ends or end <= open_ends[-1] + nanosecond / 2, f"{start} to {end} crosses {open_ends[-1]}"
        open_ends.append(end)


def _no_constant(name: str) -> None:
    raise AssertionError(f"{name} is no JSON")
