"""Recorded and shaped spans of every program against the pieces and rows they give."""

from typing import Any

import pytest

from kvdiag.derive.span_readers import Names, readers
from kvdiag.model import nixl_span as nixl
from kvdiag.model.record import HandleTransfer, RequestPiece
from kvdiag.model.span import Span
from kvdiag.model.transfer import STAGES, TransferRecord
from kvdiag_exporters.collectors.base import Engine
from kvdiag_exporters.records.hub import Hub
from kvdiag_exporters.records.otlp import from_request
from tests.exporters.host import StillClock
from tests.exporters.records.otlp_export import PROXY, SPANS, request, rows

TRACE = "0a" * 16


def span(name: str, start_s: float, end_s: float, scope: str = "", **attributes: Any) -> Span:
    named = {key.replace("__", "."): value for key, value in attributes.items()}
    resource = {"service.name": named.pop("service", "")}
    return Span(
        name=name, trace_id=TRACE, start_s=start_s, end_s=end_s, scope=scope, attributes=named, resource=resource
    )


def read(one: Span) -> list[RequestPiece | HandleTransfer]:
    for reader in readers():
        found = reader(one, Names(()))
        if found is not None:
            return list(found)
    return []


def joined(*spans: Span, names: Names | None = None) -> tuple[list[TransferRecord], Hub]:
    clock = StillClock()
    hub = Hub(names or Names(()), clock)
    found: list[TransferRecord] = []
    hub.on_rows(found.extend)
    hub.take_spans(spans)
    clock.now_s += 10
    hub.tick()
    return found, hub


def test_recorded_requests_agree_with_what_the_proxy_saw() -> None:
    seen = {row["id"]: row for row in rows(PROXY)}
    found, hub = joined(*from_request(request(rows(SPANS))))
    assert {row.request_id for row in found} == seen.keys()
    assert (hub.counts.read, hub.counts.foreign, hub.counts.invalid, hub.counts.pieces) == (26, 2, 0, 24)
    assert (hub.joiner.counts.joined, hub.joiner.open) == (12, 0)
    for row in found:
        proxy = seen[row.request_id]
        assert (row.prefill_node, row.decode_node) == ("vllm-prefill", "vllm-decode")
        assert row.prompt_tokens == proxy["prompt_tokens"]
        assert row.ttft_s is not None
        assert row.evidence == {"ttft_s": "derived", "kv_wait_s": "derived"}
        # The proxy is in front: it saw the request before and the token after, by milliseconds of an idle machine.
        outside_s = (proxy["decode_first"] - proxy["t0"]) - row.ttft_s
        assert 0 < outside_s < 0.25 * row.ttft_s + 0.06
        assert proxy["t0"] < row.arrival_s < proxy["prefill_done"]
        # The run "kvd-100" kept its front ends waiting for a processor, which no stage of an engine covers.
        total_s = sum(row.stage(stage) or 0.0 for stage in STAGES)
        assert (0.8 if "kvd-201" in row.request_id else 0.0) * row.ttft_s < total_s <= row.ttft_s * 1.02 + 0.005
        assert row.kv_wait_s is not None
        assert row.kv_wait_s > 0


def test_a_configured_engine_gives_node_and_side() -> None:
    engines = (
        Engine(name="vllm-prefill", node="node-1", role="prefill"),
        Engine(name="vllm-decode", node="node-2", role="decode"),
    )
    found, _ = joined(*from_request(request(rows(SPANS))), names=Names(engines))
    assert {(row.prefill_node, row.decode_node) for row in found} == {("node-1", "node-2")}


def test_times_that_no_clock_gives_are_counted() -> None:
    found, hub = joined(span("llm_request", 0.0, 1.0), span("llm_request", 2.0, 1.0), span("x", 1.0, 2.0))
    assert found == []
    assert (hub.counts.invalid, hub.counts.foreign) == (2, 1)


def test_a_span_that_cannot_be_read_is_counted_and_told_once(caplog: pytest.LogCaptureFixture) -> None:
    def broken(one: Span, names: Names) -> list[RequestPiece]:
        raise KeyError(one.name)

    hub = Hub(Names(()), StillClock())
    hub._readers = (broken,)
    hub.take_spans([span("llm_request", 1.0, 2.0), span("llm_request", 1.0, 2.0)])
    hub.take_spans([span("llm_request", 1.0, 2.0)])
    assert (hub.counts.invalid, hub.counts.read) == (3, 3)
    assert len(caplog.messages) == 1


def test_sglang_joins_by_the_bootstrap_room_and_counts_the_wait_after_the_prefill() -> None:
    common: dict[str, Any] = {"service": "sglang", "tp_rank": 0}
    room: dict[str, Any] = {"bootstrap_room": "2a"}
    found, hub = joined(
        span("Prefill Req 1a2b3c4d", 100.0, 100.9, rid="1a2b3c4d5e", **room, **common),
        span("prefill_waiting", 100.1, 100.2, **room, **common),
        span("prefill_forward", 100.2, 100.4, **room, **common),
        span("prefill_transfer_kv_cache", 100.4, 100.6, **room, **common),
        span(
            "Decode Req 1a2b3c4d", 100.0, 102.0, rid="other", gen_ai__latency__time_to_first_token=0.7,
            **room, **common,
        ),
        span("decode_transferred", 100.3, 100.6, **room, **common),
        span("tokenize", 100.0, 100.1, **common),
    )  # fmt: skip
    (row,) = found
    assert hub.counts.foreign == 1
    assert row.ttft_s == pytest.approx(0.7)
    assert [row.queue_s, row.prefill_s, row.transfer_s, row.pre_transfer_s] == pytest.approx([0.1, 0.2, 0.2, 0.0])
    assert row.direction == "push"
    assert row.sources == ("sglang span",)


def test_the_first_of_equal_rooms_in_any_notation_is_one_room() -> None:
    keys = [read(span("Decode Req 1", 1.0, 2.0, rid="r", bootstrap_room=room))[0].keys for room in ("0x1f", "1f", 31)]
    assert keys[0] == keys[1] == keys[2]
    assert ("room", "31") in keys[0]
    (piece,) = read(span("Decode Req 1", 1.0, 2.0, rid="r", bootstrap_room="none"))
    assert [kind for kind, _ in piece.keys] == ["id", "trace"]


def test_dynamos_frontend_tells_when_the_request_came() -> None:
    pieces = rows(SPANS)[2:4]
    spans = list(from_request(request(pieces)))
    start_s = min(one.start_s for one in spans) - 0.25
    front = Span(
        name="http-request", trace_id=spans[0].trace_id, start_s=start_s, end_s=spans[1].end_s,
        attributes={"x-request-id": "abc"}, resource={},
    )  # fmt: skip
    (row,), _ = joined(*spans, front)
    (plain,), _ = joined(*spans)
    assert row.arrival_s == start_s
    assert row.ttft_s == pytest.approx((plain.ttft_s or 0.0) + 0.25)
    assert row.grade("ttft_s") == "derived"


def test_nixl_transfers_and_registrations_belong_to_the_request_of_their_trace() -> None:
    spans = list(from_request(request(rows(SPANS)[2:4])))
    start_s, trace = spans[1].start_s, spans[1].trace_id

    def nixl_span(name: str, seconds: float, **attributes: str | float) -> Span:
        named = {getattr(nixl, key): value for key, value in attributes.items()}
        return Span(
            name=name, trace_id=trace, start_s=start_s, end_s=start_s + seconds, scope=nixl.SCOPE, attributes=named,
            resource={},
        )  # fmt: skip

    moved = nixl_span(
        nixl.TRANSFER, 0.02, BYTES=8192, DESCRIPTORS=4, PEER="p", BACKEND="UCX", DIRECTION="pull", POST_S=0.005
    )
    registered, waited = nixl_span(nixl.REGISTER, 0.01), nixl_span(nixl.PREPARE, 0.01)
    (row,), hub = joined(*spans, moved, registered, waited)
    assert hub.counts.foreign == 0
    assert [row.bytes, row.descriptors, row.register_s] == pytest.approx([8192, 4, 0.01], abs=1e-6)
    assert [row.post_s, row.wire_s] == pytest.approx([0.005, 0.015], abs=1e-6)
    assert row.direction == "pull"
