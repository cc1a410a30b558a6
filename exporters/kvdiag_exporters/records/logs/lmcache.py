"""LMCache's lines per request (lmcache/v1/cache_engine.py, 0.5.6); its "GB" is GiB, its costs are milliseconds.

What is stored goes out of the engine's memory, what is retrieved comes in: push and pull, as seen from the engine.
"""

import re
from collections.abc import Iterable

from kvdiag.derive.request_ids import engine_key
from kvdiag.model.record import HandleTransfer, Piece

LITERALS = (b"] Stored ", b"] Retrieved ")
_LINE = re.compile(
    r"\[req_id=(?P<id>[^\]\s]+)\] (?P<verb>Stored|Retrieved) .*?size: (?P<size>[\d.]+) [gG][bB], "
    r"cost (?P<cost>[\d.]+) ms"
)


def read(line: str, now_s: float) -> Iterable[Piece] | None:
    """Return the transfer between the engine's memory and the cache."""
    found = _LINE.search(line)
    if found is None:
        return None
    duration_s = float(found["cost"]) / 1000
    return (
        HandleTransfer(
            source="lmcache log",
            keys=(engine_key(found["id"]),),
            direction="push" if found["verb"] == "Stored" else "pull",
            backend="LMCache",
            start_s=now_s - duration_s,
            duration_s=duration_s,
            bytes=float(found["size"]) * (1 << 30),
            evidence={"start_s": "derived"},
        ),
    )
