"""SGLang's request spans (sglang/srt/observability/trace*.py, req_time_stats.py, 0.5.12 to 0.5.23).

A root span "<role> Req <first 8 of rid>" names the request and its bootstrap room; spans of the stages share its
trace. Names read from the source; no recording of a run was at hand.
"""

import re
from collections.abc import Iterable

from kvdiag.derive.request_ids import room_key
from kvdiag.derive.span_readers import Names
from kvdiag.model.record import HandleTransfer, Key, RequestPiece, Side
from kvdiag.model.span import Span

_ROOT = re.compile(r"(?P<role>.+) Req [0-9A-Za-z_-]{1,8}")
_STAGES = {
    "prefill_waiting", "prefill_forward", "chunked_prefill", "prefill_transfer_kv_cache",
    "decode_bootstrap", "decode_prepare", "decode_transferred", "decode_waiting", "decode_forward",
}  # fmt: skip


def read(span: Span, names: Names) -> Iterable[RequestPiece | HandleTransfer] | None:
    """Return the piece of a root span, or what a stage's span adds."""
    if span.name in _STAGES and ("tp_rank" in span.attributes or "host_id" in span.attributes or _ours(span)):
        return _stage(span, names)
    root = _ROOT.fullmatch(span.name)
    if root is None or span.text("rid") is None:
        return None
    ttft_s = span.number("gen_ai.latency.time_to_first_token")
    return (
        RequestPiece(
            keys=(("id", str(span.attributes["rid"])), *_room(span), *span.trace_key),
            source="sglang span",
            side=_side(root["role"]) or names.side(span),
            node=names.node(span),
            start_s=span.start_s,
            first_token_s=None if ttft_s is None else span.start_s + ttft_s,
            prompt_tokens=span.number("gen_ai.usage.prompt_tokens"),
            output_tokens=span.number("gen_ai.usage.completion_tokens"),
            direction="push",
            error=span.failed,
        ),
    )


def _stage(span: Span, names: Names) -> Iterable[RequestPiece | HandleTransfer]:
    keys = (*_room(span), *span.trace_key)
    node = names.node(span)
    if span.name == "prefill_transfer_kv_cache":
        # The backends time the tail after the last chunk, all but NIXL's since 0.5.23: a lower bound of the transfer.
        yield HandleTransfer(
            source="sglang span",
            keys=keys,
            node=node,
            direction="push",
            start_s=span.start_s,
            duration_s=span.duration_s,
            error=span.failed,
            evidence={"duration_s": "estimated"},
        )
        return
    side: Side = "prefill" if "prefill" in span.name else "decode"
    yield RequestPiece(
        keys=keys,
        source="sglang span",
        side=side,
        node=node,
        queue_s=span.duration_s if span.name == "prefill_waiting" else None,
        prefill_s=span.duration_s if span.name == "prefill_forward" else None,
        prefill_end_s=span.end_s if span.name in ("prefill_forward", "chunked_prefill") else None,
        setup_end_s=span.end_s if span.name == "decode_bootstrap" else None,
        admit_end_s=span.end_s if span.name == "decode_prepare" else None,
        kv_present_s=span.end_s if span.name == "decode_transferred" else None,
        first_step_s=span.duration_s if span.name == "decode_waiting" else None,
        error=span.failed,
        evidence={"first_step_s": "derived"} if span.name == "decode_waiting" else {},
    )


def _ours(span: Span) -> bool:
    return "sglang" in span.scope or "sglang" in str(span.resource.get("service.name", "")).lower()


def _room(span: Span) -> tuple[Key, ...]:
    """Return the bootstrap room, which spans print in hexadecimal."""
    value = span.attributes.get("bootstrap_room")
    if isinstance(value, int) and not isinstance(value, bool):
        return (room_key(value),)
    try:
        return (room_key(int(str(value), 16)),)
    except ValueError:
        return ()


def _side(role: str) -> Side | None:
    lower = role.lower()
    return "prefill" if "prefill" in lower else "decode" if "decode" in lower else None
