"""The Transfer Engine's own statistics line (MC_TE_METRIC=1, Mooncake 0.3.13); its "MB/s" is MiB/s."""

import re
from collections.abc import Iterable

from kvdiag.model.record import Piece, WindowRecord

LITERALS = (b"Transfer Engine Stats (over last ",)
_STATS = re.compile(r"Transfer Engine Stats \(over last (?P<seconds>\d+)s\): Throughput: (?P<rate>[\d.]+) MB/s")


def read(line: str, now_s: float) -> Iterable[Piece] | None:
    """Return the bytes that one process moved in the interval before the line."""
    found = _STATS.search(line)
    if found is None:
        return None
    seconds = float(found["seconds"])
    moved = float(found["rate"]) * (1 << 20) * seconds
    return (
        WindowRecord(
            source="mooncake log",
            node=None,
            engine=None,
            start_s=now_s - seconds,
            end_s=now_s,
            values={"transferred_bytes": moved},
            evidence={"transferred_bytes": "derived"},
        ),
    )
