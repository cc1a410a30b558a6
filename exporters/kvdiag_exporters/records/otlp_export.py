"""Joined records as OpenTelemetry spans, sent on over OTLP/HTTP; names of the GenAI conventions only here.

Every gen_ai.* name is of status "Development" in open-telemetry/semantic-conventions-genai; there is no convention for
KV transfer, so those names are kvdiag's own.
"""

import queue
import threading
from collections.abc import Mapping, Sequence

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import SpanKind

import kvdiag
from kvdiag.model.transfer import STAGES, TransferRecord

QUEUE = 8192
BATCH = 512
SCOPE = "kvdiag.records"
NAME = "kvdiag.request"


class OtlpExport:
    """`take` queues a span per request; `dropped` counts those that found the queue full or no receiver."""

    def __init__(self, endpoint: str, exporter: SpanExporter | None = None) -> None:
        self._ids = _TraceIds()
        self._queue = _Queue(exporter or OTLPSpanExporter(endpoint.rstrip("/") + "/v1/traces", timeout=5))
        resource = Resource({"service.name": "kvdiag", "service.version": kvdiag.__version__})
        provider = TracerProvider(sampler=ALWAYS_ON, resource=resource, id_generator=self._ids, shutdown_on_exit=False)
        provider.add_span_processor(self._queue)
        self._tracer = provider.get_tracer(SCOPE, kvdiag.__version__)

    def count_on(self, sent: int, dropped: int) -> None:
        """Add to the counts what was counted before a reload."""
        self._queue.sent += sent
        self._queue.dropped += dropped

    @property
    def dropped(self) -> int:
        return self._queue.dropped

    @property
    def sent(self) -> int:
        return self._queue.sent

    def take(self, records: Sequence[TransferRecord]) -> None:
        """Queue requests; never waits."""
        for record in records:
            self._ids.trace_id = _trace_id(record)
            start_ns = round(record.arrival_s * 1e9)
            span = self._tracer.start_span(
                NAME, kind=SpanKind.INTERNAL, start_time=start_ns, attributes=attributes(record)
            )
            span.end(end_time=start_ns + round((record.ttft_s or 0.0) * 1e9))

    def stop(self, within_s: float = 0.5) -> None:
        """Send what is queued, in so much time at most."""
        self._queue.stop(within_s)


class _TraceIds(RandomIdGenerator):
    """Gives the next span the request's own trace, so that it stands beside the engines' spans."""

    trace_id = 0

    def generate_trace_id(self) -> int:
        return self.trace_id or super().generate_trace_id()


class _Queue(SpanProcessor):
    """The SDK's batching, with its drops counted and an end that does not wait for a receiver."""

    def __init__(self, exporter: SpanExporter) -> None:
        self.dropped = 0
        self.sent = 0
        self._exporter = exporter
        self._spans: queue.Queue[ReadableSpan] = queue.Queue(QUEUE)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="otlp-export", daemon=True)
        self._thread.start()

    def on_end(self, span: ReadableSpan) -> None:
        try:
            self._spans.put_nowait(span)
        except queue.Full:
            self.dropped += 1

    def stop(self, within_s: float = 0.5) -> None:
        self._stop.set()
        self._thread.join(within_s)
        self._exporter.shutdown()

    def _run(self) -> None:
        while not (self._stop.is_set() and self._spans.empty()):
            try:
                batch = [self._spans.get(timeout=0.2)]
            except queue.Empty:
                continue
            while len(batch) < BATCH and not self._spans.empty():
                batch.append(self._spans.get_nowait())
            if self._exporter.export(batch) is SpanExportResult.SUCCESS:
                self.sent += len(batch)
            else:
                self.dropped += len(batch)


def attributes(record: TransferRecord) -> Mapping[str, str | float | int]:
    """Return a record's columns under their names outside; what is absent is left out."""
    found: dict[str, str | float | int | None] = {
        "gen_ai.response.id": record.request_id,
        "gen_ai.usage.input_tokens": None if record.prompt_tokens is None else int(record.prompt_tokens),
        "gen_ai.usage.output_tokens": None if record.output_tokens is None else int(record.output_tokens),
        "kvdiag.ttft": record.ttft_s,
        "kvdiag.prefill.node": record.prefill_node,
        "kvdiag.decode.node": record.decode_node,
        "kvdiag.transfer.direction": record.direction,
        "kvdiag.transfer.size": None if record.bytes is None else int(record.bytes),
        "kvdiag.transfer.descriptors": None if record.descriptors is None else int(record.descriptors),
        "kvdiag.missing": "; ".join(record.missing) or None,
    }
    for stage in STAGES:
        name = stage.removesuffix("_s")
        found[f"kvdiag.stage.{name}"] = record.stage(stage)
        if record.grade(stage) in ("derived", "estimated"):
            found[f"kvdiag.evidence.{name}"] = record.grade(stage)
    if record.ttft_s is not None:
        found["kvdiag.evidence.ttft"] = record.grade("ttft_s")
    return {name: value for name, value in found.items() if value is not None}


def _trace_id(record: TransferRecord) -> int:
    """Return the request's trace id; 0, which is none, where it has no valid one."""
    try:
        found = int(record.trace_id or "0", 16)
    except ValueError:
        return 0
    return found if 0 < found < 1 << 128 else 0
