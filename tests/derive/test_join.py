"""Pieces of requests in any order against the rows they must give."""

import itertools
from dataclasses import replace

import pytest

from kvdiag.derive import join
from kvdiag.derive.join import Joiner
from kvdiag.derive.request_ids import engine_key, external_key, room_key
from kvdiag.derive.request_row import request_row
from kvdiag.model.record import HandleTransfer, RequestPiece
from kvdiag.model.transfer import STAGES, TransferRecord

PREFILL = RequestPiece(
    keys=(("id", "r-1"), ("trace", "ab")), source="vllm span", side="prefill", node="p0", start_s=100.0,
    prefill_end_s=100.3, queue_s=0.1, prefill_s=0.2, prompt_tokens=512, output_tokens=1,
)  # fmt: skip
DECODE = RequestPiece(
    keys=(("id", "r-1"), ("trace", "ab")), source="vllm span", side="decode", node="d0", start_s=100.35,
    kv_present_s=100.45, first_token_s=100.5, first_step_s=0.04, prompt_tokens=512, output_tokens=16,
)  # fmt: skip
CLIENT = RequestPiece(keys=(("id", "r-1"),), source="client", side="client", start_s=99.99, first_token_s=100.55)
HANDLES = tuple(
    HandleTransfer(
        keys=(("trace", "ab"),), source="nixl span", node="d0", direction="pull", start_s=start_s, duration_s=0.05,
        post_s=0.01, bytes=4096, descriptors=4,
    )
    for start_s in (100.36, 100.38)
)  # fmt: skip


def joined(*pieces: RequestPiece | HandleTransfer) -> tuple[TransferRecord, Joiner]:
    joiner = Joiner(settle_s=1.0)
    for piece in pieces:
        joiner.add(piece, 0.0)
    (row,) = joiner.take(1.0)
    assert joiner.open == 0
    return row, joiner


def test_the_stages_of_both_sides_are_one_row() -> None:
    row, joiner = joined(PREFILL, DECODE)
    assert (row.request_id, row.trace_id) == ("r-1", "ab")
    assert (row.prefill_node, row.decode_node) == ("p0", "d0")
    assert row.ttft_s == pytest.approx(0.5)
    assert row.kv_wait_s == pytest.approx(0.15)
    assert (row.queue_s, row.prefill_s, row.first_step_s) == (0.1, 0.2, 0.04)
    assert (row.grade("ttft_s"), row.grade("kv_wait_s"), row.grade("queue_s")) == ("derived", "derived", "measured")
    assert row.grade("bytes") == "absent"
    assert (row.prompt_tokens, row.output_tokens) == (512, 16)
    assert row.missing == ()
    assert (joiner.counts.joined, joiner.counts.unjoined) == (1, 0)


@pytest.mark.parametrize("order", [*itertools.permutations((PREFILL, DECODE, CLIENT, *HANDLES))])
def test_the_order_of_arrival_does_not_matter(order: tuple[RequestPiece | HandleTransfer, ...]) -> None:
    row, joiner = joined(*order)
    assert row.arrival_s == 99.99
    assert row.ttft_s == pytest.approx(0.56)
    assert row.grade("ttft_s") == "measured"
    assert row.transfer_s == pytest.approx(0.07)  # 100.36 to 100.43, in which the two overlap
    assert row.pre_transfer_s == pytest.approx(0.08)
    assert row.kv_wait_s is None
    assert (row.bytes, row.descriptors, row.direction) == (8192, 8, "pull")
    assert sum(row.stage(stage) or 0.0 for stage in STAGES) <= (row.ttft_s or 0.0)
    assert joiner.counts == join.JoinCounts(joined=1)


def test_a_late_link_joins_what_had_no_common_identity() -> None:
    link = RequestPiece(keys=(("room", "7"), ("trace", "ab")), source="sglang span", side="part", register_s=0.01)
    handle = replace(HANDLES[0], prepare_s=0.005)
    row, _ = joined(replace(PREFILL, keys=(("room", "7"),)), replace(DECODE, keys=(("trace", "ab"),)), handle, link)
    assert row.register_s == 0.01
    assert row.post_s == pytest.approx(0.015)
    assert row.wire_s == pytest.approx(0.04)
    assert row.request_id == "trace:ab"


def test_sides_that_are_not_told_are_told_by_their_order() -> None:
    row, _ = joined(replace(DECODE, side=None), replace(PREFILL, side=None))
    assert (row.prefill_node, row.decode_node) == ("p0", "d0")


def test_what_never_comes_is_named() -> None:
    joiner = Joiner(wait_s=60)
    joiner.add(DECODE, 0.0)
    assert joiner.take(59.9) == []
    (row,) = joiner.take(60.0)
    assert row.missing == ("nothing from the prefill side: waited 60 s",)
    assert (row.ttft_s, row.kv_wait_s, row.first_step_s) == (None, None, 0.04)
    assert joiner.counts.unjoined == 1
    joiner.add(PREFILL, 61.0)
    assert (joiner.counts.late, joiner.open) == (1, 0)


def test_an_engine_that_is_both_needs_no_other() -> None:
    alone = replace(DECODE, side=None, kv_present_s=None, queue_s=0.02, prefill_s=0.1)
    joiner = Joiner(wait_s=60)
    joiner.add(alone, 0.0)
    (row,) = joiner.drain()
    assert (row.prefill_node, row.decode_node, row.missing) == ("d0", "d0", ())
    assert row.ttft_s == pytest.approx(0.15)
    assert row.grade("ttft_s") == "measured"
    assert joiner.counts.joined == 1


def test_an_exporters_retry_counts_once() -> None:
    row, joiner = joined(PREFILL, DECODE, HANDLES[0], PREFILL, DECODE, HANDLES[0])
    assert joiner.counts.repeated == 3
    assert row.bytes == 4096


def test_memory_is_bounded_and_what_made_room_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(join, "MOST_PIECES", 8)
    monkeypatch.setattr(join, "REMEMBERED", 10)
    joiner = Joiner(most_open=5)
    for number in range(100):
        joiner.add(replace(DECODE, keys=(("id", str(number)),)), 0.0)
    assert joiner.open == 5
    rows = joiner.take(0.0)
    assert [row.request_id for row in rows] == [str(number) for number in range(95)]
    assert rows[0].missing == ("nothing from the prefill side: not waited for: 5 requests were open",)
    assert joiner.counts.evicted == 95
    # Five requests' identities are looked up, ten finished ones' are remembered.
    assert (len(joiner._by_key), len(joiner._finished)) == (5, 10)
    for number in range(20):
        joiner.add(replace(HANDLES[0], keys=(("id", "99"),), start_s=100.0 + number), 0.0)
    assert joiner.counts.excess == 13
    joiner.add(HandleTransfer(source="vllm plugin", bytes=1), 0.0)
    assert joiner.counts.nameless == 1


def test_clocks_that_are_apart_give_no_negative_times() -> None:
    row, _ = joined(PREFILL, replace(DECODE, kv_present_s=100.2, first_token_s=100.25))
    assert row.kv_wait_s is None
    assert "kv_wait_s: the KV cache would be present 0.100 s before" in row.missing[0]
    # Queue and prefill alone exceed this TTFT: none of the stages can be believed together.
    assert row.queue_s is None
    assert "add up to 0.340 s of a TTFT of 0.250 s" in row.missing[1]
    row, _ = joined(PREFILL, replace(DECODE, first_token_s=99.0))
    assert row.ttft_s is None
    assert "ttft_s: the first token would be 1.000 s before" in row.missing[0]


def test_only_the_wait_after_the_prefill_counts_as_the_decode_sides() -> None:
    decode = replace(DECODE, start_s=100.0, setup_end_s=100.1, admit_end_s=100.35)
    row = request_row([PREFILL, decode], [])
    assert row is not None
    assert [row.setup_s, row.admit_s, row.transfer_s] == pytest.approx([0.0, 0.05, 0.1])
    assert row.grade("admit_s") == "derived"


def test_what_is_known_better_counts_whichever_came_first() -> None:
    guessed = replace(
        DECODE, source="vllm plugin", start_s=100.3, kv_present_s=100.9, first_token_s=101.0,
        evidence={"start_s": "derived", "kv_present_s": "derived", "first_token_s": "derived"},
    )  # fmt: skip
    for order in ((guessed, DECODE, PREFILL), (PREFILL, DECODE, guessed)):
        row, _ = joined(*order)
        assert [row.ttft_s, row.kv_wait_s] == pytest.approx([0.5, 0.15])
    row, _ = joined(PREFILL, guessed)
    assert row.ttft_s == pytest.approx(1.0)
    assert row.grade("ttft_s") == "derived"


def test_the_cache_is_there_when_the_last_handle_ended_which_the_decode_side_saw() -> None:
    late = replace(HANDLES[0], start_s=100.40, duration_s=0.055)
    row, _ = joined(PREFILL, DECODE, late)
    assert [row.transfer_s, row.pre_transfer_s] == pytest.approx([0.055, 0.1])
    # Not beyond the first step's begin at 100.46, and not by the clock of another node.
    row, _ = joined(PREFILL, DECODE, replace(late, duration_s=0.2))
    assert [row.transfer_s, row.pre_transfer_s] == pytest.approx([0.06, 0.1])
    row, _ = joined(PREFILL, DECODE, replace(late, node="p0"))
    assert [row.transfer_s, row.pre_transfer_s] == pytest.approx([0.05, 0.1])


def test_a_failed_handle_is_told_and_moves_nothing() -> None:
    row, _ = joined(PREFILL, DECODE, HANDLES[0], replace(HANDLES[1], error="nixlRemoteDisconnectError"))
    assert row.bytes == 4096
    assert row.transfer_s == pytest.approx(0.07)
    assert row.missing == ("nixl span: nixlRemoteDisconnectError",)


def test_what_moved_while_the_prefill_ran_delayed_nothing() -> None:
    early, late = (
        replace(HANDLES[0], start_s=100.0, duration_s=0.31),
        replace(HANDLES[1], start_s=100.4, duration_s=0.2),
    )
    row, _ = joined(PREFILL, DECODE, early, late)
    # The wait is that from 100.3 to 100.46, where the first step began; they moved until 100.31, and from 100.4 on.
    assert [row.transfer_s, row.pre_transfer_s] == pytest.approx([0.07, 0.09])


def test_the_end_of_the_last_chunk_is_the_prefills_end() -> None:
    chunk = replace(PREFILL, prefill_end_s=100.4)
    row, joiner = joined(PREFILL, chunk, DECODE)
    assert row.kv_wait_s == pytest.approx(0.05)
    assert joiner.counts.repeated == 0


def test_names_of_one_request() -> None:
    assert external_key("cmpl-kvd-11-0000-0") == ("id", "kvd-11-0000")
    assert external_key("cmpl-kvd-11-0000-1") == ("id", "kvd-11-0000-1")
    assert external_key("chatcmpl-a-0") == ("id", "a-0")
    assert external_key("bench-00aa11bb-7") == ("id", "bench-00aa11bb-7")
    assert engine_key("cmpl-kvd-11-0000-0-a0554b98") == ("id", "kvd-11-0000")
    assert room_key(0x1F) == ("room", "31")


def test_rows_may_be_taken_a_few_at_a_time() -> None:
    joiner = Joiner(wait_s=60, settle_s=1.0, most_open=6)
    for number in range(8):  # two are evicted, three settle, three wait for their other side
        for one in (PREFILL, DECODE)[: 2 if 2 <= number < 5 else 1]:
            joiner.add(replace(one, keys=(("id", str(number)),)), 0.0)
    taken = [[row.request_id for row in joiner.take(60.0, 3)] for _ in range(4)]
    assert taken == [["0", "1", "2"], ["3", "4", "5"], ["6", "7"], []]
    assert joiner.open == 0
