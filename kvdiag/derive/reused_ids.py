"""Requests that were sent under one id more than once: load generators with a fixed seed repeat theirs every run."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace

from kvdiag.model.record import HandleTransfer, Key, RequestPiece

AGAIN = "#"
"""What follows the id of the second and further requests of one id, with their number."""


def told_apart(pieces: Iterable[RequestPiece | HandleTransfer]) -> tuple[list[RequestPiece | HandleTransfer], int]:
    """Return the pieces with ids that name one request each, and how many ids named several.

    An id in several traces names several requests where one of these traces holds two sides: then a trace goes through
    both, and each is a request. Where every side has its own trace, the id is all that links them.
    """
    given = list(pieces)
    traces: defaultdict[Key, dict[Key, set[str | None]]] = defaultdict(dict)
    starts: dict[Key, float] = {}
    for one in given:
        ids, trace = _keys(one)
        if isinstance(one, RequestPiece) and one.side != "part" and trace is not None:
            for key in ids:
                traces[key].setdefault(trace, set()).add(one.side or one.node)
            if one.start_s is not None:
                starts[trace] = min(starts.get(trace, one.start_s), one.start_s)
    renamed: dict[tuple[Key, Key], Key] = {}
    for key, found in traces.items():
        if len(found) > 1 and any(len(sides) > 1 for sides in found.values()):
            for number, trace in enumerate(sorted(found, key=lambda one: starts.get(one, 0.0)), start=1):
                renamed[key, trace] = (key[0], f"{key[1]}{AGAIN}{number}") if number > 1 else key
    if not renamed:
        return given, 0
    return [_with_names(one, renamed) for one in given], len({key for key, _ in renamed})


def _keys(one: RequestPiece | HandleTransfer) -> tuple[list[Key], Key | None]:
    return [key for key in one.keys if key[0] == "id"], next((key for key in one.keys if key[0] == "trace"), None)


def _with_names(
    one: RequestPiece | HandleTransfer, renamed: dict[tuple[Key, Key], Key]
) -> RequestPiece | HandleTransfer:
    _, trace = _keys(one)
    if trace is None:
        return one
    keys = tuple(renamed.get((key, trace), key) for key in one.keys)
    return one if keys == one.keys else replace(one, keys=keys)
