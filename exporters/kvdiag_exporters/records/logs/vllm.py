"""vLLM's lines on failed and expired transfers, and its statistics of all transfers (vLLM 0.11 to 0.33)."""

import ast
import re
from collections.abc import Iterable

from kvdiag.derive.request_ids import engine_key
from kvdiag.model.record import HandleTransfer, Piece, RequestPiece, WindowRecord

LITERALS = (
    b"NIXL transfer failure: ", b"Releasing expired KV blocks for request ", b"KV Transfer metrics: ",
    b"seconds without being sent", b"Sending to ",
)  # fmt: skip
INTERVAL_S = 10.0
"""VLLM_LOG_STATS_INTERVAL by default; the line does not tell it."""
_FAILURE = re.compile(r"NIXL transfer failure: (?P<kind>\w+) \| Context: (?P<context>\{.*\})")
_EXPIRED = re.compile(r"Releasing expired KV blocks for request (?P<id>\S+) which were retrieved by (?P<readers>\d+)")
_TIMED_OUT = re.compile(r"Request (?P<id>\S+) timed out after (?P<seconds>\d+) seconds without being sent")
_SENDING = re.compile(
    r"Sending to (?P<peer>\S+) failed \(ret=(?P<ret>-?\d+)\) after (?P<seconds>[\d.e-]+)s? "
    r"\((?P<descriptors>\d+) descriptors, (?P<bytes>\d+) bytes\)"
)
_STATISTIC = re.compile(r"(?P<name>[A-Z][A-Za-z0-9 ]+?)(?: \((?P<unit>ms|MB/s)\))?=(?P<value>[\d.]+)")
_NAMES = {
    "Num successful transfers": ("transfers", 1.0),
    "Avg xfer time": ("transfer_mean_seconds", 1e-3),
    "P90 xfer time": ("transfer_p90_seconds", 1e-3),
    "Avg post time": ("post_mean_seconds", 1e-3),
    "P90 post time": ("post_p90_seconds", 1e-3),
    "Avg MB per transfer": ("transfer_mean_bytes", float(1 << 20)),
    "Avg number of descriptors": ("descriptors_mean", 1.0),
    "Num failed transfers": ("failed_transfers", 1.0),
    "Num KV expired reqs": ("expired_requests", 1.0),
    "Num notifs after expiry": ("late_notifications", 1.0),
}
"""What of the statistics is kept: not the throughput, which is bytes over the sum of overlapping times."""


def read(line: str, now_s: float) -> Iterable[Piece] | None:
    """Return what a line tells of a request, a transfer or the last interval."""
    if "KV Transfer metrics: " in line:
        return _statistics(line, now_s)
    failure = _FAILURE.search(line)
    if failure is not None:
        context = _context(failure["context"])
        request_id = context.get("request_id")
        return (
            HandleTransfer(
                source="vllm log",
                keys=(engine_key(str(request_id)),) if request_id else (),
                peer=str(context["remote_host"]) if context.get("remote_host") else None,
                error=failure["kind"],
            ),
        )
    expired = _EXPIRED.search(line)
    if expired is not None:
        error = f"KV blocks expired, read by {expired['readers']} workers"
        return (RequestPiece(keys=(engine_key(expired["id"]),), source="vllm log", side="prefill", error=error),)
    late = _TIMED_OUT.search(line)
    if late is not None:
        error = f"not sent within {late['seconds']} s"
        return (RequestPiece(keys=(engine_key(late["id"]),), source="vllm log", side="prefill", error=error),)
    sending = _SENDING.search(line)
    if sending is not None:
        return (
            HandleTransfer(
                source="vllm log",
                peer=sending["peer"],
                direction="push",
                duration_s=float(sending["seconds"]),
                bytes=float(sending["bytes"]),
                descriptors=float(sending["descriptors"]),
                error=f"ret {sending['ret']}",
            ),
        )
    return None


def _context(text: str) -> dict[str, object]:
    """Return the mapping as Python prints it; ValueError where it is none."""
    try:
        found = ast.literal_eval(text)
    except (SyntaxError, MemoryError, RecursionError) as error:
        raise ValueError(f"the context of a transfer failure is not a mapping: {error}") from None
    if not isinstance(found, dict):
        raise ValueError("the context of a transfer failure is not a mapping")
    return found


def _statistics(line: str, now_s: float) -> Iterable[Piece]:
    values: dict[str, float] = {}
    for one in _STATISTIC.finditer(line.partition("KV Transfer metrics: ")[2]):
        known = _NAMES.get(one["name"])
        if known is not None:
            values[known[0]] = float(one["value"]) * known[1]
    if not values:
        raise ValueError("KV Transfer metrics without a known statistic")
    yield WindowRecord(
        source="vllm log", node=None, engine=None, start_s=now_s - INTERVAL_S, end_s=now_s, values=values
    )
