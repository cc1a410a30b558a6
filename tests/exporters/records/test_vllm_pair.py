"""A recorded pair of real vLLM engines with the plugin inside, against what its client and vLLM's own metrics saw."""

from collections.abc import Callable

import pytest

from kvdiag.derive.span_readers import Names
from kvdiag.model.record import HandleTransfer, Piece
from kvdiag.model.transfer import STAGES, TransferRecord
from kvdiag_exporters.collectors.base import Engine
from kvdiag_exporters.records.followers import Followers
from kvdiag_exporters.records.hub import Hub
from kvdiag_exporters.records.log_reader import LogReader
from kvdiag_exporters.records.otlp import from_protobuf
from tests.exporters.host import StillClock
from tests.exporters.records.otlp_export import FIXTURES, rows

PAIR = FIXTURES / "vllm-0.32-pair"
ENGINES = tuple(
    Engine(name=f"vllm-{role}", node=node, role=role, step_records=PAIR / f"steps-{role}.jsonl")
    for role, node in (("prefill", "p0"), ("decode", "d0"))
)
CLIENT = {row["id"]: row for row in rows(PAIR / "client.jsonl")}
TRANSFERS, BYTES, BLOCK = 16, 142_606_336, 2 << 20


def steps() -> list[Piece]:
    return Followers(ENGINES, LogReader(lambda: 0.0), whole_steps=True).poll()


def joined(*feeds: Callable[[Hub], None]) -> tuple[dict[str, TransferRecord], Hub]:
    clock = StillClock()
    hub = Hub(Names(ENGINES), clock)
    found: list[TransferRecord] = []
    hub.on_rows(found.extend)
    for feed in feeds:
        feed(hub)
    clock.now_s += 10
    hub.tick()
    return {row.request_id: row for row in found}, hub


def with_steps(hub: Hub) -> None:
    hub.take(steps())


def with_spans(hub: Hub) -> None:
    hub.take_spans(from_protobuf((PAIR / "spans.pb").read_bytes()))


def test_every_transfer_is_a_handle() -> None:
    handles = [one for one in steps() if isinstance(one, HandleTransfer)]
    assert len(handles) == TRANSFERS
    assert sum(one.bytes or 0.0 for one in handles) == BYTES
    assert {(one.node, one.direction, one.backend, one.error) for one in handles} == {
        ("d0", "pull", "NixlConnector", "")
    }
    # Requests one after the other are told apart; of those at once, some finish in the same step.
    assert sum(bool(one.keys) for one in handles) >= 8


@pytest.mark.parametrize("feeds", [(with_steps, with_spans), (with_spans, with_steps)])
def test_the_joined_requests_are_those_of_the_client(feeds: tuple[Callable[[Hub], None], ...]) -> None:
    found, hub = joined(*feeds)
    assert found.keys() == CLIENT.keys()
    assert (hub.joiner.counts.joined, hub.joiner.counts.unjoined, hub.joiner.open) == (16, 0, 0)
    linked = 0
    for request_id, row in found.items():
        seen = CLIENT[request_id]
        assert (row.prefill_node, row.decode_node, row.trace_id) == ("p0", "d0", seen["trace"])
        assert (row.prompt_tokens, row.uncached_tokens, row.output_tokens) == (seen["len"], seen["len"], 8)
        assert row.missing == ()
        assert row.ttft_s is not None
        # The client's time holds the two HTTP requests besides; no other clock is between them.
        assert 0 < seen["ttft"] - row.ttft_s < 0.25 * seen["ttft"] + 0.05
        total_s = sum(row.stage(stage) or 0.0 for stage in STAGES)
        assert 0.6 * row.ttft_s < total_s <= row.ttft_s * 1.02 + 0.005
        if row.transfer_s is not None:
            linked += 1
            assert row.bytes == seen["blocks"] * BLOCK
            assert row.transfer_s > 0
    assert linked >= 8


def test_spans_or_step_records_alone_join_as_well() -> None:
    by_spans, _ = joined(with_spans)
    by_steps, _ = joined(with_steps)
    assert by_spans.keys() == by_steps.keys() == CLIENT.keys()
    for request_id, row in by_spans.items():
        other = by_steps[request_id]
        assert row.ttft_s is not None
        assert other.ttft_s == pytest.approx(row.ttft_s, abs=0.05)
        assert (row.transfer_s, row.grade("ttft_s"), other.grade("ttft_s")) == (None, "derived", "derived")
