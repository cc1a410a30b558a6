"""A simulated recording as the files that engines, load generators and NIXL agents would have left of it."""

import json
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from kvdiag.model import nixl_span as nixl
from kvdiag.model.bundle import Bundle


def rows(bundle: Bundle) -> list[dict[str, Any]]:
    """Return the requests as mappings of columns, with hexadecimal traces."""
    numbers, labels = bundle.requests.numbers, bundle.requests.labels
    found = []
    for row in range(len(bundle.requests)):
        one: dict[str, Any] = {name: float(values[row]) for name, values in numbers.items()}
        one |= {name: label.names[label.codes[row]] for name, label in labels.items()}
        found.append(one | {"id": f"req-{row}", "trace": f"{row + 1:032x}"})
    return found


def _span(
    one: dict[str, Any], name: str, service: str, start_s: float, stop_s: float, scope: str, **told: Any
) -> dict[str, Any]:
    def value(given: Any) -> dict[str, Any]:
        return {"doubleValue": given} if isinstance(given, float) else {"stringValue": given}

    attributes = [{"key": key.replace("__", "."), "value": value(given)} for key, given in told.items()]
    span = {
        "traceId": one["trace"],
        "spanId": "01" * 8,
        "name": name,
        "startTimeUnixNano": str(round(start_s * 1e9)),
        "endTimeUnixNano": str(round(stop_s * 1e9)),
        "attributes": attributes,
        "status": {},
    }
    resource = {"attributes": [{"key": "service.name", "value": {"stringValue": service}}]}
    return {"resource": resource, "scopeSpans": [{"scope": {"name": scope}, "spans": [span]}]}


def _ends(one: dict[str, Any]) -> tuple[float, float]:
    """Return when the prefill ended and when the KV cache was there."""
    end = one["arrival_s"] + one["queue_s"] + one["prefill_s"]
    return end, one["arrival_s"] + one["ttft_s"] - one["first_step_s"]


def spans(one: dict[str, Any], *, decode: bool = True, transfers: bool = True) -> list[dict[str, Any]]:
    """Return vLLM's span of either side, and the span of the transfer by kvdiag's NIXL instrumentation."""
    end, present = _ends(one)
    first = one["arrival_s"] + one["ttft_s"]
    usage = {"gen_ai__request__id": f"cmpl-{one['id']}-0", "gen_ai__usage__prompt_tokens": one["prompt_tokens"]}
    found = [
        _span(
            one,
            "llm_request",
            "vllm-prefill",
            one["arrival_s"],
            end,
            "vllm.tracing.otel",
            **usage,
            gen_ai__latency__time_in_queue=one["queue_s"],
            gen_ai__latency__time_in_model_prefill=one["prefill_s"],
            gen_ai__latency__time_to_first_token=end - one["arrival_s"],
        )
    ]
    if decode:
        found.append(
            _span(
                one,
                "llm_request",
                "vllm-decode",
                end,
                first + 0.1,
                "vllm.tracing.otel",
                **usage,
                gen_ai__latency__time_in_queue=present - end,
                gen_ai__latency__time_in_model_prefill=one["first_step_s"],
                gen_ai__latency__time_to_first_token=first - end,
            )
        )
    if transfers:
        moving = one["post_s"] + one["wire_s"]
        told = {nixl.BYTES: one["bytes"], nixl.DESCRIPTORS: one["descriptors"], nixl.POST_S: one["post_s"]}
        found.append(_span(one, nixl.TRANSFER, "vllm-decode", present - moving, present, nixl.SCOPE, **told))
    return found


def write_otlp(path: Path, exports: Iterable[list[dict[str, Any]]]) -> Path:
    """Write one export a line, as the collector's file exporter does."""
    path.write_text("".join(json.dumps({"resourceSpans": one}) + "\n" for one in exports))
    return path


def aiperf(one: dict[str, Any], early_s: float = 0.002) -> str:
    """Return AIPerf's line of a request that it sent `early_s` before it arrived."""
    start_ns = round((one["arrival_s"] - early_s) * 1e9)
    ttft_ms = (one["ttft_s"] + 2 * early_s) * 1e3
    return json.dumps(
        {
            "metadata": {
                "session_num": 0,
                "x_request_id": one["id"],
                "request_start_ns": start_ns,
                "request_end_ns": start_ns + round(ttft_ms * 1e6) + 10**8,
                "benchmark_phase": "profiling",
                "was_cancelled": False,
            },
            "metrics": {
                "time_to_first_token": {"value": ttft_ms, "unit": "ms"},
                "usage_prompt_tokens": {"value": int(one["prompt_tokens"]), "unit": "tokens"},
                "inter_chunk_latency": {"value": [9.0, 11.0], "unit": "ms"},
            },
        }
    )


def guidellm(requests: list[dict[str, Any]], early_s: float = 0.002) -> dict[str, Any]:
    """Return GuideLLM's report (schema 2) of the requests."""
    successful = [
        {
            "type_": "generative_request_stats",
            "request_id": "b5f0a6b6-2cb4-4f3b-8f3e-000000000000",
            "response_id": f"cmpl-{one['id']}",
            "info": {"timings": {"request_start": one["arrival_s"] - early_s}, "status": "completed"},
            "request_start_time": one["arrival_s"] - early_s,
            "time_to_first_token_ms": (one["ttft_s"] + 2 * early_s) * 1e3,
            "prompt_tokens": int(one["prompt_tokens"]),
            "output_tokens": 8,
        }
        for one in requests
    ]
    kinds: dict[str, Any] = {"successful": successful, "incomplete": [], "errored": [], "total": None}
    return {"metadata": {"version": 2}, "args": {}, "benchmarks": [{"requests": kinds}]}


def bench(requests: list[dict[str, Any]], early_s: float = 0.002) -> dict[str, Any]:
    """Return the result of `vllm bench serve` on a clock that began 4000 s before the first request."""
    origin = requests[0]["arrival_s"] - 4000.0
    return {
        "date": "20261129-141747",
        "backend": "openai",
        "input_lens": [int(one["prompt_tokens"]) for one in requests],
        "output_lens": [8] * len(requests),
        "ttfts": [one["ttft_s"] + 2 * early_s for one in requests],
        "start_times": [one["arrival_s"] - early_s - origin for one in requests],
        "errors": [""] * len(requests),
        "mean_ttft_ms": 1.0,
    }


def write_ring(path: Path, requests: list[dict[str, Any]], *, push: bool = False) -> Path:
    """Write NIXL's ring (version 4) of an agent that read (or wrote) the requests' caches one after another."""
    events = [(4, 1 << 30)]
    for one in requests:
        post_us, moving_us = round(one["post_s"] * 1e6), round((one["post_s"] + one["wire_s"]) * 1e6)
        events += [(7, post_us), (6, moving_us), (0 if push else 1, round(one["bytes"])), (2 if push else 3, 1)]
    capacity = 1 << (len(events) + 1).bit_length()
    head = struct.pack("<QQiiQQ", len(events), 0, 4, 4, capacity, capacity - 1)
    body = b"".join(struct.pack("<IIQ", kind, 0xABCD, value) for kind, value in events)
    path.write_bytes(head + body.ljust(16 * capacity, b"\0"))
    return path
