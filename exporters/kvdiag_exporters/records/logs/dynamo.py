"""Dynamo's request trace (DYN_REQUEST_TRACE_SINKS=jsonl, schema dynamo.request.trace.v1, ai-dynamo 1.6.1).

Times are the frontend's. `kv_transfer_estimated_latency_ms` is an upper bound: it ends with the first token.
"""

from collections.abc import Iterable

import msgspec

from kvdiag.model.record import Key, Piece, RequestPiece

LITERALS = (b"dynamo.request.trace.v1",)


class _Worker(msgspec.Struct):
    prefill_worker_id: int | str | None = None
    decode_worker_id: int | str | None = None


class _Request(msgspec.Struct):
    request_id: str | None = None
    x_request_id: str | None = None
    input_tokens: float | None = None
    output_tokens: float | None = None
    cached_tokens: float | None = None
    request_received_ms: float | None = None
    prefill_wait_time_ms: float | None = None
    prefill_time_ms: float | None = None
    ttft_ms: float | None = None
    kv_transfer_estimated_latency_ms: float | None = None
    worker: _Worker | None = None


class _Line(msgspec.Struct):
    request: _Request | None = None


_DECODER = msgspec.json.Decoder(_Line)


def read(line: str, now_s: float) -> Iterable[Piece] | None:  # noqa: ARG001  (every reader has the two)
    """Return the frontend's view and what it knows of either side."""
    one = _DECODER.decode(line.strip()).request
    if one is None:
        return None
    keys: tuple[Key, ...] = tuple(("id", text) for text in dict.fromkeys((one.x_request_id, one.request_id)) if text)
    start_s = _seconds(one.request_received_ms)
    if not keys or start_s is None:
        raise ValueError("a request without request_id or request_received_ms")
    ttft_s, queue_s, compute_s = (
        _seconds(value) for value in (one.ttft_ms, one.prefill_wait_time_ms, one.prefill_time_ms)
    )
    estimate_s = _seconds(one.kv_transfer_estimated_latency_ms)
    end_s = None if queue_s is None or compute_s is None else start_s + queue_s + compute_s
    worker = one.worker or _Worker()
    cached = one.cached_tokens
    source = "dynamo trace"
    return (
        RequestPiece(
            keys=keys,
            source=source,
            side="client",
            start_s=start_s,
            first_token_s=None if ttft_s is None else start_s + ttft_s,
            prompt_tokens=one.input_tokens,
            uncached_tokens=None if cached is None or one.input_tokens is None else one.input_tokens - cached,
            output_tokens=one.output_tokens,
        ),
        RequestPiece(
            keys=keys,
            source=source,
            side="prefill",
            node=_text(worker.prefill_worker_id),
            queue_s=queue_s,
            prefill_s=compute_s,
            prefill_end_s=end_s,
        ),
        RequestPiece(
            keys=keys,
            source=source,
            side="decode",
            node=_text(worker.decode_worker_id),
            kv_present_s=None if end_s is None or estimate_s is None else end_s + estimate_s,
            evidence={"kv_present_s": "estimated"},
        ),
    )


def _seconds(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000


def _text(value: int | str | None) -> str | None:
    return None if value is None else str(value)
