"""Pieces of requests given to another exporter over OTLP: there the sides of a request meet that run on two nodes."""

import logging
import threading
import time
from collections import deque
from collections.abc import Sequence
from itertools import islice

import msgspec
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext

import kvdiag
from kvdiag.model import forward_span
from kvdiag.model.piece_line import PieceLine
from kvdiag.model.record import HandleTransfer, RequestPiece

_log = logging.getLogger(__name__)
QUEUE = 20_000
"""Pieces that wait, about 1 KB each; a further one is dropped and counted."""
BATCH = 512
A_SPAN = 32
"""Pieces in one span."""
TIMEOUT_S = 5.0
"""Of one export; within it OTLP's exporter tries again by itself, at growing intervals."""
ATTEMPTS = 12
"""Exports of one batch: a receiver may be away for a minute; what it refuses for good stops the others no longer."""
PAUSE_S = 1.0


class Forward:
    """`take` queues pieces; `sent` and `dropped` count them: dropped where the queue was full or nobody took them."""

    def __init__(self, endpoint: str, exporter: SpanExporter | None = None) -> None:
        self.sent = self.dropped = 0
        self._exporter = exporter or OTLPSpanExporter(endpoint.rstrip("/") + "/v1/traces", timeout=TIMEOUT_S)
        self._endpoint = endpoint
        self._resource = Resource({"service.name": "kvdiag", "service.version": kvdiag.__version__})
        self._scope = InstrumentationScope(forward_span.SCOPE, kvdiag.__version__)
        self._waiting: deque[RequestPiece | HandleTransfer] = deque()
        self._changed = threading.Condition()
        self._stop = threading.Event()
        self._failing = False
        self._thread = threading.Thread(target=self._run, name="forward", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def take(self, pieces: Sequence[RequestPiece | HandleTransfer]) -> None:
        """Queue pieces; never waits."""
        with self._changed:
            room = max(0, QUEUE - len(self._waiting))
            self._waiting.extend(pieces[:room])
            self.dropped += len(pieces[room:])
            self._changed.notify()

    def stop(self, within_s: float = 0.5) -> None:
        """Send what waits, in so much time at most; what is left is dropped."""
        self._stop.set()
        with self._changed:
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join(within_s)
        self._exporter.shutdown()
        with self._changed:
            self.dropped += len(self._waiting)
            if self._waiting:
                _log.warning("%d pieces were not forwarded before the end", len(self._waiting))
            self._waiting.clear()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._waiting and not self._stop.is_set():
                    self._changed.wait()
                batch = list(islice(self._waiting, BATCH))
            if not batch:
                return
            sent = self._send(batch)
            if not sent and self._stop.is_set():
                return  # what waits is counted by who stops
            with self._changed:
                for _ in batch:
                    self._waiting.popleft()
                self.sent += len(batch) * sent
                self.dropped += len(batch) * (not sent)

    def _send(self, batch: Sequence[RequestPiece | HandleTransfer]) -> bool:
        spans = [self._span(batch[at : at + A_SPAN]) for at in range(0, len(batch), A_SPAN)]
        for _ in range(ATTEMPTS):
            if self._exporter.export(spans) is SpanExportResult.SUCCESS:
                if self._failing:
                    _log.warning("forwarding to %s works again; %d pieces dropped so far", self._endpoint, self.dropped)
                self._failing = False
                return True
            if not self._failing:
                _log.error("forwarding to %s fails; it is tried again, and not told again", self._endpoint)
            self._failing = True
            if self._stop.wait(PAUSE_S):
                break
        return False

    def _span(self, pieces: Sequence[RequestPiece | HandleTransfer]) -> ReadableSpan:
        line = PieceLine(
            requests=tuple(one for one in pieces if isinstance(one, RequestPiece)),
            transfers=tuple(one for one in pieces if isinstance(one, HandleTransfer)),
        )
        now_ns = time.time_ns()
        return ReadableSpan(
            forward_span.NAME,
            context=SpanContext(trace_id=1, span_id=1, is_remote=False),  # of no request: the pieces name theirs
            resource=self._resource,
            attributes={forward_span.PIECES: msgspec.json.encode(line).decode()},
            start_time=now_ns,
            end_time=now_ns,
            instrumentation_scope=self._scope,
        )
