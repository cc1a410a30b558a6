"""vLLM's `llm_request` span, one per request and engine (vllm/v1/engine/output_processor.py, 0.11 to 0.33).

It starts at the request's arrival. On a decode engine `time_in_queue` ends when the KV cache is there, for a request
that waits for it is not scheduled; on a prefill engine it ends where the computation begins.
"""

from collections.abc import Iterable

from kvdiag.derive.request_ids import external_key
from kvdiag.derive.span_readers import Names
from kvdiag.model.record import RequestPiece
from kvdiag.model.span import Span

_NAME = "llm_request"


def read(span: Span, names: Names) -> Iterable[RequestPiece] | None:
    """Return the request's piece of one side."""
    request_id = span.text("gen_ai.request.id")
    if span.name != _NAME or request_id is None:
        return None
    queue_s = span.number("gen_ai.latency.time_in_queue")
    compute_s = span.number("gen_ai.latency.time_in_model_prefill")
    ttft_s = span.number("gen_ai.latency.time_to_first_token")
    side = names.side(span)
    scheduled_s = None if queue_s is None else span.start_s + queue_s
    return (
        RequestPiece(
            keys=(external_key(request_id), *span.trace_key),
            source="vllm span",
            side=side,
            node=names.node(span),
            start_s=span.start_s,
            queue_s=None if side == "decode" else queue_s,
            prefill_s=None if side == "decode" else compute_s,
            prefill_end_s=None if scheduled_s is None or compute_s is None else scheduled_s + compute_s,
            kv_present_s=None if side == "prefill" else scheduled_s,
            first_step_s=None if side == "prefill" else compute_s,
            first_token_s=None if ttft_s is None else span.start_s + ttft_s,
            prompt_tokens=_either(span, "input_tokens", "prompt_tokens"),
            output_tokens=_either(span, "output_tokens", "completion_tokens"),
            error=span.failed,
        ),
    )


def _either(span: Span, new: str, old: str) -> float | None:
    """Return a count by the name of today's conventions, else by the deprecated one that vLLM 0.33 still uses."""
    value = span.number(f"gen_ai.usage.{new}")
    return span.number(f"gen_ai.usage.{old}") if value is None else value
