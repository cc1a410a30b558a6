"""Clients of the exporter, good and bad: spans over OTLP, connections that stall, bodies that hurt."""

import gzip
import http.client
import socket
import threading
import time
from contextlib import ExitStack
from http import HTTPStatus

import grpc
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

_METHOD = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
_BOMB = gzip.compress(bytes(64 << 20), 9)
_EMPTY_SPANS = b"\x0a\x84\x89\x7a\x12\x80\x89\x7a" + b"\x12\x00" * 1_000_000
_HEAD = "POST /v1/traces HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-protobuf\r\n"
BEGINNINGS = (
    b"",
    b"POST /v1/tra",
    _HEAD.encode(),
    f"{_HEAD}Content-Length: 100000\r\n\r\nabc".encode(),
    b"GET /metrics HTTP/1.1\r\nHost: x\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0",
    b"\x16\x03\x01\x02\x00\x01",
)


def _post(body: bytes, **headers: str) -> bytes:
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    length = "" if "Content_Length" in headers else f"Content-Length: {len(body)}\r\n"
    return f"{_HEAD}{lines}{length}\r\n".encode() + body


HOSTILE = (
    _post(_BOMB, Content_Encoding="gzip"),
    _post(_BOMB[:1000], Content_Encoding="gzip"),
    _post(b"not gzip", Content_Encoding="gzip"),
    _post(b"\xff" * 5000),
    _post(_EMPTY_SPANS),
    _post(b"", Content_Length="99999999999999"),
    _post(b"", Content_Length="-1"),
    _post(b"x" * 10, Content_Encoding="br"),
    _post(b"{" * 100_000).replace(b"application/x-protobuf", b"application/json"),
    b"GET /metrics HTTP/1.1\r\n" + b"X: y\r\n" * 2000,
    b"G" * 200_000,
    b"\0" * 1000,
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 10_000,
    b"GET /api/records?limit=-1 HTTP/1.0\r\n\r\n",
    b"DELETE / HTTP/1.0\r\n\r\n",
)


def connect(held: ExitStack, address: str) -> socket.socket:
    """Return a connection that ends with `held`."""
    host, _, port = address.rpartition(":")
    return held.enter_context(socket.create_connection((host, int(port)), timeout=2))


class Sender:
    """Sends spans of whole requests at a steady pace; counts the spans that were taken, by time, and those that may
    have been: an answer that was cut leaves it open.
    """

    def __init__(self, http: str, over_grpc: str, requests_s: float) -> None:
        self._address = http
        self._channel = grpc.insecure_channel(over_grpc)
        self._export = self._channel.unary_unary(_METHOD)
        self._every_s = 0.2
        self._batch = max(1, round(requests_s * self._every_s))
        self._stop = threading.Event()
        self._taken: list[tuple[float, int]] = []
        self.sent = self.taken = self.open = self.refused = 0
        self._thread = threading.Thread(target=self._run, name="sender", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()
        self._channel.close()

    def read_between(self, start_s: float, end_s: float) -> tuple[float, float]:
        """Return how many spans the exporter must have read by `start_s`, and may have by `end_s`."""
        sure = sum(count for at_s, count in list(self._taken) if at_s < start_s)
        return sure, float("inf") if end_s == float("inf") else self.sent * 2

    def _run(self) -> None:
        number = 0
        while not self._stop.wait(self._every_s):
            body = export(range(number, number + self._batch))
            number += self._batch
            self.sent += self._batch
            over_grpc = number // self._batch % 2 == 0
            outcome = self._call(body) if over_grpc else self._post(body)
            if outcome == HTTPStatus.OK:
                self.taken += self._batch
                self._taken.append((time.monotonic(), self._batch * 2))
            elif outcome is None:
                self.open += self._batch
            else:
                self.refused += self._batch

    def _call(self, body: bytes) -> int | None:
        """Return what the status of an HTTP answer would be; None where it is not known whether it arrived."""
        try:
            self._export(body, timeout=10)
        except grpc.RpcError:
            return None
        return int(HTTPStatus.OK)

    def _post(self, body: bytes) -> int | None:
        """Return the status; 0 where the export never went out whole, None where no answer to it came."""
        connection = http.client.HTTPConnection(self._address, timeout=10)
        whole = False
        try:
            connection.connect()
            connection.request("POST", "/v1/traces", body, {"Content-Type": "application/x-protobuf"})
            whole = True
            return connection.getresponse().status
        except (OSError, http.client.HTTPException):
            return None if whole else 0
        finally:
            connection.close()


def export(numbers: range) -> bytes:
    """Return an export with both sides' spans of these requests."""
    found = ExportTraceServiceRequest()
    now_ns = time.time_ns()
    for service, queue_s, prefill_s, ttft_s in (
        ("vllm-prefill", 0.01, 0.04, 0.05),
        ("vllm-decode", 0.08, 0.01, 0.1),
    ):
        resource = found.resource_spans.add()
        resource.resource.attributes.add(key="service.name").value.string_value = service
        scope = resource.scope_spans.add()
        scope.scope.name = "vllm.tracing.otel"
        for number in numbers:
            span = scope.spans.add(
                name="llm_request",
                trace_id=(number + 1).to_bytes(16, "big"),
                start_time_unix_nano=now_ns - 10**9,
                end_time_unix_nano=now_ns,
            )
            span.attributes.add(key="gen_ai.request.id").value.string_value = f"cmpl-chaos-{number}-0"
            for key, value in (
                ("time_in_queue", queue_s),
                ("time_in_model_prefill", prefill_s),
                ("time_to_first_token", ttft_s),
            ):
                span.attributes.add(key=f"gen_ai.latency.{key}").value.double_value = value * (1 + number % 7 / 10)
    return bytes(found.SerializeToString())
