"""The OTLP receivers against real SDK exporters, and against clients that send too much, too little or nothing."""

import gzip
import json
import socket
import time
import urllib.error
import urllib.request
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from kvdiag.derive.otlp_json import from_json
from kvdiag.errors import InputError, UnavailableError
from kvdiag.model.span import Span
from kvdiag_exporters import connections
from kvdiag_exporters.records import otlp
from kvdiag_exporters.records.otlp import from_protobuf, unpack
from kvdiag_exporters.records.otlp_grpc import OtlpGrpc
from kvdiag_exporters.records.otlp_http import OtlpHttp
from tests.exporters.records.otlp_export import SPANS, json_request, request, rows

BODY = request(rows(SPANS)).SerializeToString()
PROTOBUF = "application/x-protobuf"
METHOD = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"


@contextmanager
def serving(server: OtlpHttp | OtlpGrpc) -> Iterator[str]:
    server.start()
    try:
        yield server.address
    finally:
        server.stop()


@contextmanager
def http(**limits: Any) -> Iterator[tuple[OtlpHttp, list[Span]]]:
    found: list[Span] = []
    server = OtlpHttp("127.0.0.1", 0, found.extend, **limits)
    with serving(server):
        yield server, found


def post(
    address: str, body: bytes, kind: str = PROTOBUF, path: str = "/v1/traces", **headers: str
) -> tuple[int, bytes]:
    named = {"Content-Type": kind, **{key.replace("_", "-"): value for key, value in headers.items()}}
    try:
        with urllib.request.urlopen(
            urllib.request.Request(f"http://{address}{path}", data=body, headers=named), timeout=10
        ) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


def test_protobuf_and_json_are_the_same_spans() -> None:
    from_wire = list(from_protobuf(BODY))
    assert len(from_wire) == 26
    assert list(from_json(json_request(rows(SPANS)))) == from_wire
    assert from_wire[2].trace_id == rows(SPANS)[2]["trace_id"]
    assert from_wire[2].attributes["gen_ai.usage.prompt_tokens"] == 1024


@pytest.mark.parametrize(("body", "message"), [
    (b"{", "not an ExportTraceServiceRequest in JSON"),
    (b'{"resourceSpans": 3}', "resourceSpans"),
    (b'{"resourceSpans":[{"scopeSpans":[{"spans":[{"name":"x","traceId":"AAECAw==","startTimeUnixNano":"1"}]}]}]}',
     "span 'x': .*identifiers are hexadecimal"),
    (b'{"resourceSpans":[{"scopeSpans":[{"spans":[{"name":"x","startTimeUnixNano":"1.5"}]}]}]}', "whole nanoseconds"),
    (b'{"resourceSpans":[{"scopeSpans":[{"spans":[{"startTimeUnixNano":"' + b"9" * 400 + b'"}]}]}]}', "nanoseconds"),
])  # fmt: skip
def test_json_that_is_no_export_is_named(body: bytes, message: str) -> None:
    with pytest.raises(InputError, match=message):
        list(from_json(body))


def test_a_body_that_unpacks_without_end_is_refused() -> None:
    assert unpack(gzip.compress(b"x" * 100), "gzip", 100) == b"x" * 100
    assert unpack(zlib.compress(b"x" * 100), "deflate", 100) == b"x" * 100
    for coding, body, message in (
        ("gzip", gzip.compress(b"x" * 101), "more than 100 bytes"),
        ("gzip", gzip.compress(b"x" * 50)[:20], "cut off"),
        ("gzip", b"plain", "but the body is not"),
        ("br", b"", "send gzip, deflate or none"),
    ):
        with pytest.raises(InputError, match=message):
            unpack(body, coding, 100)


def test_http_takes_exports_and_names_what_is_none() -> None:
    with http(most_bytes=100_000) as (server, found):
        assert post(server.address, BODY) == (200, b"")
        assert post(server.address, gzip.compress(BODY), Content_Encoding="gzip") == (200, b"")
        assert post(server.address, json_request(rows(SPANS)), "application/json") == (200, b"{}")
        assert len(found) == 3 * 26
        for status, body, kind, path, headers, message in (
            (400, b"\xff", PROTOBUF, "/v1/traces", {}, "not an Export"),
            (400, b"{", "application/json", "/v1/traces", {}, "in JSON"),
            (400, b"plain", PROTOBUF, "/v1/traces", {"Content_Encoding": "gzip"}, "but the body is not"),
            (413, b"x" * 100_001, PROTOBUF, "/v1/traces", {}, "smaller batches"),
            (413, b"", PROTOBUF, "/v1/traces", {"Content_Length": "9" * 5000}, "smaller batches"),
            (415, b"x", "text/plain", "/v1/traces", {}, "content-type is text/plain"),
            (404, b"x", PROTOBUF, "/v1/metrics", {}, "only /v1/traces"),
        ):
            got, answer = post(server.address, body, kind, path, **headers)
            assert (got, message in answer.decode(errors="replace")) == (status, True), (message, answer)
        assert server.counts == {"refused": 0, "overdue": 0, "rejected": 7}
        assert len(found) == 3 * 26


def test_half_open_and_many_connections_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "CYCLE_S", 0.5)
    monkeypatch.setattr(connections.BoundedConnections, "most_connections", 4)
    with http() as (server, found):
        host, port = server.address.split(":")
        slow = [socket.create_connection((host, int(port)), timeout=10) for _ in range(6)]
        try:
            for one in slow:
                one.sendall(
                    b"POST /v1/traces HTTP/1.1\r\nContent-Type: application/x-protobuf\r\nContent-Length: 9\r\n\r\n."
                )
            # All end: two at once, four when their time is over, without an answer and without an export.
            assert [_until_closed(one) for one in slow] == [b""] * 6
        finally:
            for one in slow:
                one.close()
        assert (server.counts["refused"], server.counts["overdue"]) == (2, 4)
        assert found == []
        # The threads of the cut connections end a moment later; until then a sender is refused and tries again.
        deadline = time.monotonic() + 10
        while not found:
            assert time.monotonic() < deadline
            try:
                post(server.address, BODY)
            except OSError:
                time.sleep(0.02)
        assert len(found) == 26


def test_connections_that_stall_make_room_for_those_that_send(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "STALLED_S", 0.1)
    monkeypatch.setattr(connections.BoundedConnections, "most_connections", 4)
    with http() as (server, found):
        host, port = server.address.split(":")
        slow = [socket.create_connection((host, int(port)), timeout=10) for _ in range(4)]
        try:
            time.sleep(0.2)
            for _ in range(3):
                assert post(server.address, BODY) == (200, b"")
            assert len(found) == 3 * 26
            assert server.counts["refused"] == 0
            assert 1 <= server.counts["overdue"] <= 3
        finally:
            for one in slow:
                one.close()


def _until_closed(connection: socket.socket) -> bytes:
    found = b""
    try:
        while data := connection.recv(1000):
            found += data
    except ConnectionResetError:
        pass
    return found


def test_grpc_takes_exports_and_refuses_large_ones() -> None:
    found: list[Span] = []
    with serving(OtlpGrpc("127.0.0.1", 0, found.extend, most_bytes=50_000)) as address:
        with grpc.insecure_channel(address) as channel:
            export = channel.unary_unary(
                METHOD,
                request_serializer=lambda body: body,
                response_deserializer=ExportTraceServiceResponse.FromString,
            )
            assert export(BODY, timeout=10) == ExportTraceServiceResponse()
            export(BODY, timeout=10, compression=grpc.Compression.Gzip)
            assert len(found) == 2 * 26
            bomb = ExportTraceServiceRequest()
            bomb.resource_spans.add().schema_url = "x" * 1_000_000
            for compression in (None, grpc.Compression.Gzip):
                with pytest.raises(grpc.RpcError) as raised:
                    export(bomb.SerializeToString(), timeout=10, compression=compression)
                assert raised.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            with pytest.raises(grpc.RpcError) as raised:
                channel.unary_unary("/opentelemetry.proto.collector.logs.v1.LogsService/Export")(b"", timeout=10)
            assert raised.value.code() is grpc.StatusCode.UNIMPLEMENTED
        assert len(found) == 2 * 26


def test_grpc_serves_beside_connections_that_say_nothing() -> None:
    found: list[Span] = []
    with serving(OtlpGrpc("127.0.0.1", 0, found.extend)) as address:
        host, port = address.split(":")
        silent = [socket.create_connection((host, int(port)), timeout=10) for _ in range(40)]
        try:
            for number, one in enumerate(silent):
                one.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" if number % 2 else b"GET / HTTP/1.1\r\n\r\n")
            with grpc.insecure_channel(address) as channel:
                export = channel.unary_unary(METHOD)
                export(BODY, timeout=10)
                with pytest.raises(grpc.RpcError) as raised:
                    export(b"\xff\xff", timeout=10)
        finally:
            for one in silent:
                one.close()
    assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert len(found) == 26


def test_an_address_that_is_taken_is_named() -> None:
    with http() as (server, _):
        port = int(server.address.split(":")[1])
        for kind in (OtlpHttp, OtlpGrpc):
            with pytest.raises(UnavailableError, match=f"127.0.0.1:{port}.*another"):
                kind("127.0.0.1", port, lambda spans: None)


def test_a_real_sdk_sends_to_both() -> None:
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as OverGrpc
    from opentelemetry.exporter.otlp.proto.http import Compression
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as OverHttp
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    over_grpc: list[Span] = []
    with http() as (server, over_http), serving(OtlpGrpc("127.0.0.1", 0, over_grpc.extend)) as grpc_address:
        provider = TracerProvider(resource=Resource({"service.name": "vllm-decode"}), shutdown_on_exit=False)
        endpoint = f"http://{server.address}/v1/traces"
        provider.add_span_processor(BatchSpanProcessor(OverHttp(endpoint, compression=Compression.Gzip, timeout=5)))
        provider.add_span_processor(BatchSpanProcessor(OverGrpc(endpoint=grpc_address, insecure=True, timeout=5)))
        tracer = provider.get_tracer("vllm.tracing.otel")
        before_s = time.time()
        for number in range(20):
            with tracer.start_as_current_span("llm_request") as span:
                span.set_attribute("gen_ai.request.id", f"cmpl-r{number}-0")
                trace_id = f"{span.get_span_context().trace_id:032x}"
        assert provider.force_flush(5000)
        provider.shutdown()
    for found in (over_http, over_grpc):
        assert [one.attributes["gen_ai.request.id"] for one in found] == [f"cmpl-r{n}-0" for n in range(20)]
        assert found[-1].trace_id == trace_id
        assert found[-1].resource["service.name"] == "vllm-decode"
        assert before_s - 1 < found[-1].start_s <= found[-1].end_s < time.time() + 1


def test_the_answer_to_a_refused_export_is_a_status() -> None:
    with http() as (server, _):
        status, body = post(server.address, b"[]", "application/json")
        assert status == 400
        assert json.loads(body)["message"].startswith("not an ExportTraceServiceRequest in JSON")


def test_a_receiver_without_room_says_so_and_the_sender_keeps_its_spans() -> None:
    """503 with Retry-After and UNAVAILABLE are what OTLP's senders try again after (OTLP 1.x, retryable codes)."""
    server = OtlpHttp("127.0.0.1", 0, lambda export: False)
    server.start()
    try:
        request = urllib.request.Request(f"http://{server.address}/v1/traces", BODY, {"Content-Type": PROTOBUF})
        with pytest.raises(urllib.error.HTTPError) as raised:
            urllib.request.urlopen(request, timeout=10)
        assert (raised.value.code, raised.value.headers["Retry-After"]) == (503, "1")
        raised.value.close()
    finally:
        server.stop()
    with serving(OtlpGrpc("127.0.0.1", 0, lambda export: False)) as address, grpc.insecure_channel(address) as channel:
        with pytest.raises(grpc.RpcError) as failed:
            channel.unary_unary(METHOD)(BODY, timeout=10)
        assert failed.value.code() is grpc.StatusCode.UNAVAILABLE


def _field(number: int, body: bytes) -> bytes:
    size, head = len(body), b""
    while size > 0x7F:
        head, size = head + bytes([size & 0x7F | 0x80]), size >> 7
    return bytes([number << 3 | 2]) + head + bytes([size]) + body


@pytest.mark.parametrize("spans", [b"\x12\x00", b"\x12\x02\x0a\x00", b"\x12\x02\x08\x01"])
def test_spans_without_anything_in_them_are_not_decoded(spans: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """A million of them, in 2 MB, took 87 times the memory and 20 s to read."""
    body = _field(1, _field(1, b"") + _field(2, _field(1, b"") + spans * 50_000) + b"\x1a\x01s")
    with pytest.raises(InputError, match="50000 spans in"):  # small enough to be decoded, and refused then
        from_protobuf(body)
    monkeypatch.setattr(otlp, "UNCOUNTED_BYTES", 50_000)
    monkeypatch.setattr(otlp, "ExportTraceServiceRequest", None)
    with pytest.raises(InputError, match=r"50000 spans in \d+ bytes: a span has at least its identifiers"):
        from_protobuf(body)
    monkeypatch.undo()
    few = from_protobuf(_field(1, _field(2, spans * 900)))
    assert few.count == 900
    with pytest.raises(InputError, match="not an Export"):
        from_protobuf(b"\x0a\xff\xff\xff\xff\x0f" + bytes(100_000))


def test_real_spans_are_counted_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(otlp, "UNCOUNTED_BYTES", 50_000)
    body = BODY * (1 + 100_000 // len(BODY))  # messages one after the other are one message
    assert from_protobuf(body).count == otlp._spans_in(body) == 26 * (1 + 100_000 // len(BODY))


def test_empty_spans_in_json_are_not_read() -> None:
    body = b'{"resourceSpans": [{"scopeSpans": [{"spans": [' + b",".join([b"{}"] * 5000) + b"]}]}]}"
    with pytest.raises(InputError, match="5000 spans in"):
        list(from_json(body))
