"""SGLang's `ReqTimeStats(…)` lines (--enable-request-time-stats-logging, 0.5.10 to 0.5.23) and failed transfers.

Names read from the source (sglang/srt/observability/req_time_stats.py); durations in ms, "MB" is MiB, "GB/s" GiB/s.
"""

import re
from collections.abc import Iterable

from kvdiag.derive.request_ids import room_key
from kvdiag.model.record import HandleTransfer, Key, Piece, RequestPiece

LITERALS = (b"ReqTimeStats(", b" transfer failed for request ")
_STATS = re.compile(r"ReqTimeStats\((?P<head>[^)]*)\)\s*:?\s*(?P<body>.*)")
_PAIR = re.compile(r"(?P<name>\w+)=(?P<value>[^,\s)]+)")
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_FAILED = re.compile(
    r"(?P<side>Prefill|Decode) transfer failed for request rank=(?P<rank>\d+) "
    r"(?:decode_)?req\.(?:req\.)?rid='(?P<rid>[^']*)' (?:decode_)?req\.(?:req\.)?bootstrap_room=(?P<room>\d+)"
    r"(?: with exception (?P<why>\w+))?"
)


def read(line: str, now_s: float) -> Iterable[Piece] | None:  # noqa: ARG001  (every reader has the two)
    """Return the piece of one side, with a transfer where the line tells its size and speed."""
    failed = _FAILED.search(line)
    if failed is not None:
        keys: tuple[Key, ...] = (("id", failed["rid"]), room_key(int(failed["room"])))
        why = failed["why"] or "transfer failed"
        return (HandleTransfer(source="sglang log", keys=keys, direction="push", error=why),)
    found = _STATS.search(line)
    if found is None:
        return None
    head = {one["name"]: one["value"] for one in _PAIR.finditer(found["head"])}
    body = {one["name"]: one["value"] for one in _PAIR.finditer(found["body"])}
    keys = (*_keys(head),)
    start_s = _number(body, "entry_time")
    if not keys or start_s is None:
        raise ValueError("ReqTimeStats without rid, bootstrap_room or entry_time")
    if head.get("type") == "prefill":
        return _prefill(keys, start_s, head, body)
    if head.get("type") == "decode":
        return _decode(keys, start_s, head, body)
    return (
        RequestPiece(
            keys=keys,
            source="sglang log",
            side="both",
            start_s=start_s,
            queue_s=_seconds(body, "queue_duration"),
            prompt_tokens=_number(head, "input_len"),
            output_tokens=_number(head, "output_len"),
        ),
    )


def _prefill(keys: tuple[Key, ...], start_s: float, head: dict[str, str], body: dict[str, str]) -> Iterable[Piece]:
    waited_s = _seconds(body, "bootstrap_duration", "bootstrap_queue_duration")
    queue_s, compute_s = _seconds(body, "queue_duration"), _seconds(body, "forward_duration")
    known = None not in (waited_s, queue_s, compute_s)
    prompt, cached = _number(head, "input_len"), _number(head, "cached_input_len")
    yield RequestPiece(
        keys=keys,
        source="sglang log",
        side="prefill",
        start_s=start_s,
        queue_s=queue_s,
        prefill_s=compute_s,
        prefill_end_s=start_s + (waited_s or 0.0) + (queue_s or 0.0) + (compute_s or 0.0) if known else None,
        prompt_tokens=prompt,
        uncached_tokens=None if prompt is None or cached is None else prompt - cached,
        direction="push",
    )
    mebibytes, gibibytes_per_s = _number(body, "transfer_total"), _number(body, "transfer_speed")
    if mebibytes and gibibytes_per_s:
        # One rank's share of the request, and for most backends the tail after the last chunk was queued.
        yield HandleTransfer(
            source="sglang log",
            keys=keys,
            direction="push",
            duration_s=mebibytes / 1024 / gibibytes_per_s,
            bytes=mebibytes * (1 << 20),
            evidence={"bytes": "estimated", "duration_s": "estimated"},
        )


def _decode(keys: tuple[Key, ...], start_s: float, head: dict[str, str], body: dict[str, str]) -> Iterable[Piece]:
    setup_s = _seconds(body, "bootstrap_duration")
    admit_s = _seconds(body, "alloc_wait_duration", "prealloc_queue_duration")
    transfer_s, queue_s = _seconds(body, "transfer_duration"), _seconds(body, "queue_duration")
    setup_end_s = None if setup_s is None else start_s + setup_s
    admit_end_s = None if admit_s is None else (setup_end_s or start_s) + admit_s
    present_s = None if transfer_s is None else (admit_end_s or setup_end_s or start_s) + transfer_s
    yield RequestPiece(
        keys=keys,
        source="sglang log",
        side="decode",
        start_s=start_s,
        setup_end_s=setup_end_s,
        admit_end_s=admit_end_s,
        kv_present_s=present_s,
        first_step_s=queue_s,
        # The prefill side computed the first token; it goes out with the decode side's first step, not timed here.
        first_token_s=None if present_s is None or queue_s is None else present_s + queue_s,
        output_tokens=_number(head, "output_len"),
        direction="push",
        evidence={"first_token_s": "estimated", "first_step_s": "estimated"},
    )


def _keys(head: dict[str, str]) -> Iterable[Key]:
    if head.get("rid", "None") not in ("", "None"):
        yield "id", head["rid"]
    if head.get("bootstrap_room", "").isdigit():
        yield room_key(int(head["bootstrap_room"]))


def _number(found: dict[str, str], name: str) -> float | None:
    match = _NUMBER.match(found.get(name, ""))
    return float(match[0]) if match else None


def _seconds(found: dict[str, str], *names: str) -> float | None:
    """Return the first of these durations that the version has, in seconds."""
    values = (_number(found, name) for name in names)
    return next((value / 1000 for value in values if value is not None), None)
