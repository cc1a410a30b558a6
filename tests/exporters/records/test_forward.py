"""Pieces that one exporter gives to another: what arrives, what is dropped, and one record of two nodes' halves."""

import json
import threading
import time
import urllib.request
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from kvdiag.derive.span_readers import Names
from kvdiag.derive.spans import forwarded
from kvdiag.model import forward_span
from kvdiag.model.record import HandleTransfer, RequestPiece, WindowRecord
from kvdiag.model.span import Span
from kvdiag.sources.base import SystemClock
from kvdiag_exporters.records import forward as module
from kvdiag_exporters.records.forward import Forward
from kvdiag_exporters.records.hub import Hub
from tests.exporters.records.otlp_export import SPANS, request, rows
from tests.exporters.test_cli import exporter, value

PREFILL = RequestPiece(
    keys=(("id", "r"), ("trace", "ab")), source="vllm span", side="prefill", node="p0", start_s=1.0, queue_s=0.5,
    evidence={"queue_s": "derived"},
)  # fmt: skip
HANDLE = HandleTransfer(source="nixl span", keys=(("trace", "ab"),), node="d0", duration_s=0.25, bytes=4096.0)


class Receiver(SpanExporter):
    """Keeps what it is given; refuses while `away`."""

    def __init__(self) -> None:
        self.spans: list[ReadableSpan] = []
        self.away = False
        self.tries = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.tries += 1
        if self.away:
            return SpanExportResult.FAILURE
        self.spans += spans
        return SpanExportResult.SUCCESS

    def read(self) -> list[RequestPiece | HandleTransfer]:
        """Return the pieces as the other exporter reads them."""
        found: list[RequestPiece | HandleTransfer] = []
        for one in self.spans:
            scope = one.instrumentation_scope
            assert scope is not None
            span = Span(
                name=one.name, trace_id="", start_s=1.0, end_s=1.0, scope=scope.name,
                attributes={forward_span.PIECES: str((one.attributes or {})[forward_span.PIECES])}, resource={},
            )  # fmt: skip
            found += forwarded.read(span, Names(())) or ()
        return found


def until(met: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 30
    while not met():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def test_pieces_arrive_as_they_were() -> None:
    receiver = Receiver()
    forward = Forward("http://nowhere", receiver)
    forward.start()
    forward.take([PREFILL, HANDLE] * 20)
    until(lambda: forward.sent == 40)
    forward.stop(30)
    assert sorted(receiver.read(), key=str) == sorted([PREFILL, HANDLE] * 20, key=str)
    assert len(receiver.spans) == 2
    assert forward.dropped == 0


def test_a_receiver_that_was_away_gets_what_waited(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "PAUSE_S", 0.01)
    monkeypatch.setattr(module, "ATTEMPTS", 10_000)
    monkeypatch.setattr(module, "QUEUE", 5)
    receiver = Receiver()
    receiver.away = True
    forward = Forward("http://nowhere", receiver)
    forward.start()
    for _ in range(8):
        forward.take([PREFILL])
    until(lambda: receiver.tries > 3)
    assert (forward.sent, forward.dropped) == (0, 3)
    receiver.away = False
    until(lambda: forward.sent == 5)
    forward.stop(30)
    assert [record.message for record in caplog.records] == [
        "forwarding to http://nowhere fails; it is tried again, and not told again",
        "forwarding to http://nowhere works again; 3 pieces dropped so far",
    ]


def test_what_is_never_taken_is_dropped_and_counted_and_so_is_what_waits_at_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "PAUSE_S", 0.001)
    monkeypatch.setattr(module, "ATTEMPTS", 3)
    receiver = Receiver()
    receiver.away = True
    forward = Forward("http://nowhere", receiver)
    forward.start()
    forward.take([PREFILL])
    until(lambda: forward.dropped == 1)
    assert receiver.tries == 3
    monkeypatch.setattr(module, "PAUSE_S", 30.0)
    forward.take([PREFILL, HANDLE])
    until(lambda: receiver.tries == 4)
    forward.stop(30)
    assert (forward.sent, forward.dropped) == (0, 3)


def test_only_pieces_of_requests_go_on_and_only_once() -> None:
    hub = Hub(Names(()), SystemClock())
    given: list[RequestPiece | HandleTransfer] = []
    shown: list[object] = []
    hub.forward = given.extend
    hub.on_pieces(shown.extend)
    alone = HandleTransfer(source="vllm plugin", bytes=1.0)
    window = WindowRecord(source="mooncake", node="p0", engine=None, start_s=1.0, end_s=2.0, values={})
    hub.take([PREFILL, HANDLE, alone, window])
    assert given == [PREFILL, HANDLE]
    assert shown == [HANDLE, alone, window]
    assert hub.joiner.open == 0
    receiver = Receiver()
    forward = Forward("http://nowhere", receiver)
    forward.take(given)
    forward.start()
    until(lambda: forward.sent == 2)
    forward.stop(30)
    text = str((receiver.spans[0].attributes or {})[forward_span.PIECES])
    span = Span(
        name=forward_span.NAME, trace_id="", start_s=1.0, end_s=1.0, scope=forward_span.SCOPE,
        attributes={forward_span.PIECES: text}, resource={},
    )  # fmt: skip
    broken = {forward_span.PIECES: '{"requests": [{"keys": 3}]}'}
    hub.take_spans([span, replace(span, attributes={}), replace(span, attributes=broken)])
    assert given == [PREFILL, HANDLE]  # forwarded ones are joined here
    assert hub.joiner.open == 1
    assert len(shown) == 3  # and shown where they were read
    assert hub.counts.invalid == 2


FORWARDING = """
interval_s = 0.1
[[engines]]
name = "vllm-prefill"
node = "p0"
role = "prefill"
[records]
otlp_http = "127.0.0.1:0"
[records.forward]
endpoint = "http://{aggregator}"
"""
JOINING = """
interval_s = 0.1
[[engines]]
name = "vllm-decode"
node = "d0"
role = "decode"
[recorder]
path = "bundle"
[records]
otlp_http = "127.0.0.1:0"
settle_s = 0.2
"""


@pytest.mark.component
def test_a_request_whose_halves_two_exporters_saw_is_one_record(tmp_path: Path) -> None:
    sides: dict[str, list[dict[str, object]]] = {"vllm-prefill": [], "vllm-decode": []}
    for row in rows(SPANS):
        sides[row["resource"]["service.name"]].append(row)
    for name in ("prefill", "joining"):
        (tmp_path / name).mkdir()
    with ExitStack() as ending:
        process, url = ending.enter_context(exporter(tmp_path / "joining", JOINING))
        aggregator = _otlp(process)
        sender, sender_url = ending.enter_context(
            exporter(tmp_path / "prefill", FORWARDING.format(aggregator=aggregator))
        )
        _post(_otlp(sender), sides["vllm-prefill"])
        _post(aggregator, sides["vllm-decode"])
        whole = {str(one["trace_id"]) for one in sides["vllm-prefill"]} & {
            str(one["trace_id"]) for one in sides["vllm-decode"]
        }
        assert len(whole) > 5

        def joined() -> list[dict[str, object]]:
            with urllib.request.urlopen(f"{url}/api/records?limit=1000", timeout=10) as answer:
                return [one for one in json.loads(answer.read())["requests"] if one["trace_id"] in whole]

        until(lambda: len(joined()) == len(whole))
        assert {(one["prefill_node"], one["decode_node"]) for one in joined()} == {("p0", "d0")}
        assert all(one["ttft_s"] for one in joined())
        pieces = sum(one["name"] == "llm_request" for one in sides["vllm-prefill"])

        def metrics() -> str:
            with urllib.request.urlopen(f"{sender_url}/metrics", timeout=10) as answer:
                return str(answer.read().decode())

        until(lambda: value(metrics(), 'kvdiag_records_forwarded_total{result="sent"}') == pieces)
        assert value(metrics(), 'kvdiag_records_forwarded_total{result="dropped"}') == 0
        assert value(metrics(), "kvdiag_records_open") == 0


def _otlp(process: object) -> str:
    """Return where the process that was started listens for spans, from the line that it tells."""
    stderr = process.stderr  # type: ignore[attr-defined]
    line = stderr.readline()
    threading.Thread(target=stderr.read, daemon=True).start()
    return str(line.partition("otlp_http on ")[2].split(";")[0].strip())


def _post(address: str, spans: Sequence[dict[str, object]]) -> None:
    body = request(list(spans)).SerializeToString()
    headers = {"Content-Type": "application/x-protobuf"}
    with urllib.request.urlopen(
        urllib.request.Request(f"http://{address}/v1/traces", body, headers), timeout=10
    ) as one:
        assert one.status == 200
