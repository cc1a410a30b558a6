"""The text of `rdma resource show` and `rdma -j resource show qp`, as a copied tree keeps it."""

import re
from collections.abc import Mapping

import msgspec

from kvdiag.model.missing import Missing
from kvdiag.model.rdma_resources import KERNEL_OWNED, QueuePair, ResourceSummary

_SUMMARY = re.compile(r"^(?:\d+: )?(\w+): (pd .*)$", re.MULTILINE)
_COUNT = re.compile(r"(\w+) (\d{1,18})\b")


def summaries(text: str) -> tuple[ResourceSummary, ...]:
    """Return one summary per line ("2: mlx5_0: pd 4 cq 9 qp 5 cm_id 0 mr 5 ctx 1"); other lines are passed over."""
    return tuple(
        ResourceSummary(device=device, counts={kind: int(count) for kind, count in _COUNT.findall(counts)})
        for device, counts in _SUMMARY.findall(text)
    )


def queue_pairs(text: str) -> tuple[QueuePair, ...]:
    """Return the queue pairs of the JSON list; none where the text is no such list (a cut copy)."""
    try:
        entries = msgspec.json.decode(text.encode(errors="replace"), type=list[dict[str, object]])
    except (msgspec.DecodeError, RecursionError):
        return ()
    return tuple(_queue_pair(entry) for entry in entries)


def _queue_pair(entry: Mapping[str, object]) -> QueuePair:
    # Objects of the kernel have "comm" without "pid" (iproute2 6).
    pid = _number(entry, "pid", KERNEL_OWNED)
    lqpn = _number(entry, "lqpn", Missing(""))
    return QueuePair(
        device=str(entry.get("ifname", "")),
        port=_number(entry, "port", Missing("bound to no port")),
        lqpn=0 if isinstance(lqpn, Missing) else lqpn,
        rqpn=_number(entry, "rqpn", Missing("not a connected queue pair")),
        type=str(entry.get("type", "")),
        state=str(entry.get("state", "")),
        pid=pid,
        owner=str(entry.get("comm", "")),
    )


def _number(entry: Mapping[str, object], key: str, absent: Missing) -> int | Missing:
    value = entry.get(key)
    return value if isinstance(value, int) and abs(value) < 1 << 63 else absent
