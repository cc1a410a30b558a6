"""What joining costs: python benchmarks/record_joining.py [REQUESTS]. Two spans and one transfer make a request.

Prints CPU time per request of each step, and the memory that a full second of 10,000 requests adds while they settle.
"""

import resource
import sys
import time
from dataclasses import replace

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from kvdiag.model import nixl_span as nixl
from kvdiag.model.transfer import TransferRecord
from kvdiag.sources.base import SystemClock
from kvdiag_exporters.collectors.base import Engine, Setup, create_all
from kvdiag_exporters.records.otlp import from_protobuf
from kvdiag_exporters.records.service import Records
from kvdiag_exporters.records.settings import RecordsConfig

BATCH = 512
ENGINES = (
    Engine(name="vllm-prefill", node="p0", role="prefill"),
    Engine(name="vllm-decode", node="d0", role="decode"),
)


def main(requests: int) -> None:
    """Print the table."""
    bodies = [export(range(start, min(start + BATCH // 3, requests))) for start in range(0, requests, BATCH // 3)]
    setup = Setup(node="host", engines=ENGINES)
    records = Records(RecordsConfig(), ENGINES, "host", setup.stream, SystemClock())
    setup = replace(setup, records=records)
    create_all(setup)
    given: list[TransferRecord] = []
    setup.stream.add_sink(given.extend)
    times = {"decode the export": 0.0, "read and join": 0.0, "give on (histograms, window)": 0.0}
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for body in bodies:
        start = time.thread_time()
        spans = list(from_protobuf(body))
        middle = time.thread_time()
        records.hub.take_spans(spans)
        times["decode the export"] += middle - start
        times["read and join"] += time.thread_time() - middle
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    start = time.thread_time()
    records.hub.stop()
    times["give on (histograms, window)"] = time.thread_time() - start
    for name, seconds in times.items():
        print(f"{name:30} {seconds / requests * 1e6:6.1f} µs per request")
    total = sum(times.values()) / requests
    print(f"{'together':30} {total * 1e6:6.1f} µs: {1 / total:.0f} requests/s on one core")
    print(f"{requests} open requests: {grown / 1024:.0f} MiB; given on: {len(given)}; {records.hub.joiner.counts}")


def export(numbers: range) -> bytes:
    """Return an export of three spans for each request."""
    export = ExportTraceServiceRequest()
    now_ns = time.time_ns()
    by_scope = {}
    for service, scope in (
        ("vllm-prefill", "vllm.tracing.otel"), ("vllm-decode", "vllm.tracing.otel"), ("vllm-decode", nixl.SCOPE)
    ):  # fmt: skip
        resource_spans = export.resource_spans.add()
        resource_spans.resource.attributes.add(key="service.name").value.string_value = service
        by_scope[service, scope] = resource_spans.scope_spans.add()
        by_scope[service, scope].scope.name = scope
    for number in numbers:
        trace_id = number.to_bytes(16, "big") if number else b"\1" * 16
        for service in ("vllm-prefill", "vllm-decode"):
            span = by_scope[service, "vllm.tracing.otel"].spans.add(
                name="llm_request", trace_id=trace_id, start_time_unix_nano=now_ns, end_time_unix_nano=now_ns + 10**9
            )
            span.attributes.add(key="gen_ai.request.id").value.string_value = f"cmpl-request-{number}-0"
            for key in ("time_to_first_token", "e2e", "time_in_queue", "time_in_model_prefill", "time_in_model_decode"):
                span.attributes.add(key=f"gen_ai.latency.{key}").value.double_value = 0.1
            for key in ("prompt_tokens", "completion_tokens"):
                span.attributes.add(key=f"gen_ai.usage.{key}").value.int_value = 512
        span = by_scope["vllm-decode", nixl.SCOPE].spans.add(
            name=nixl.TRANSFER, trace_id=trace_id, start_time_unix_nano=now_ns, end_time_unix_nano=now_ns + 10**7
        )
        span.attributes.add(key=nixl.BYTES).value.int_value = 1 << 20
        span.attributes.add(key=nixl.DESCRIPTORS).value.int_value = 64
        span.attributes.add(key=nixl.DIRECTION).value.string_value = "pull"
    return bytes(export.SerializeToString())


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 10_000)
