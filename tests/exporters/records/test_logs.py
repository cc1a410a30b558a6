"""Lines of engine logs against the pieces they give; those of vLLM and Mooncake were recorded in runs."""

import json
import os
from pathlib import Path

import pytest

from kvdiag.derive.join import Joiner
from kvdiag.model.piece_line import PieceLine
from kvdiag.model.record import HandleTransfer, Piece, RequestPiece, WindowRecord
from kvdiag.model.transfer import TransferRecord
from kvdiag_exporters.collectors.base import Engine
from kvdiag_exporters.records.followers import Followers
from kvdiag_exporters.records.log_reader import LogReader

PREFILL = (
    "[2026-11-29 12:00:00 TP0] ReqTimeStats(rid=1a2b, bootstrap_room=42, input_len=1024, cached_input_len=256, "
    "output_len=1, attempts=1, type=prefill): bootstrap_duration=10.00ms, queue_duration=20.00ms, "
    "forward_duration=70.00ms, entry_time=1764000000.000, transfer_speed=2.00 GB/s, transfer_total=64.00 MB"
)
DECODE = (
    "[2026-11-29 12:00:00 TP0] ReqTimeStats(rid=9f9f, bootstrap_room=42, input_len=1024, cached_input_len=0, "
    "output_len=16, attempts=1, type=decode): bootstrap_duration=30.00ms, alloc_wait_duration=90.00ms, "
    "transfer_duration=60.00ms, queue_duration=5.00ms, forward_duration=300.00ms, entry_time=1764000000.010"
)
FAILED = (
    "(EngineCore pid=3570) ERROR 11-29 14:18:03 [base_worker.py:3101] NIXL transfer failure: transfer_exception | "
    "Context: {'failure_type': 'transfer_exception', 'request_id': 'cmpl-kvd-501-0000-0-869a4f20', "
    "'remote_engine_id': 'ed358b62', 'remote_host': '192.0.2.22', 'remote_port': 5600}"
)
STATISTICS = (
    "(APIServer pid=1795) INFO 11-29 14:08:18 [metrics.py:103] KV Transfer metrics: Num successful transfers=29, "
    "Avg xfer time (ms)=42.803, P90 xfer time (ms)=135.879, Avg post time (ms)=0.689, P90 post time (ms)=1.85, "
    "Avg MB per transfer=10.345, Throughput (MB/s)=241.683, Avg number of descriptors=5.0, Num failed transfers=0, "
    "Num KV expired reqs=0, Num notifs after expiry=0"
)
MOONCAKE = (
    "I1129 14:10:19.013188  5866 transfer_engine_impl.cpp:1128] [Metrics] Transfer Engine Stats (over last 1s): "
    "Throughput: 12.76 MB/s"
)
SGLANG_FAILED = (
    "[2026-02-26 17:44:23 TP5] Prefill transfer failed for request rank=5 req.rid='85e5' req.bootstrap_room=35 with "
    "exception KVTransferError(bootstrap_room=35): Decode instance could be dead, remote mooncake session "
    "198.51.100.22:15993 is not alive"
)
DYNAMO = json.dumps({
    "schema": "dynamo.request.trace.v1", "event_type": "request_end", "event_time_unix_ms": 1764000001000,
    "request": {
        "request_id": "internal", "x_request_id": "mine", "input_tokens": 100, "cached_tokens": 20, "output_tokens": 9,
        "request_received_ms": 1764000000000, "prefill_wait_time_ms": 10, "prefill_time_ms": 100, "ttft_ms": 250,
        "kv_transfer_estimated_latency_ms": 130, "worker": {"prefill_worker_id": 7, "decode_worker_id": 8},
    },
})  # fmt: skip


def pieces(*lines: str) -> list[Piece]:
    reader = LogReader(lambda: 5000.0)
    return [piece for line in lines if (found := reader.decode(line.encode())) for piece in found.pieces]


def joined(*found: Piece) -> TransferRecord:
    joiner = Joiner(settle_s=0.0)
    for one in found:
        assert not isinstance(one, WindowRecord)
        joiner.add(one, 0.0)
    (row,) = joiner.take(0.0)
    return row


def test_sglang_lines_of_both_sides_are_one_request() -> None:
    row = joined(*pieces(DECODE, PREFILL))
    assert row.request_id == "9f9f"
    assert row.arrival_s == 1764000000.0
    # The prefill ended at 0.100; then the decode side waited for its blocks until 0.130, and for the data until 0.190.
    assert [row.queue_s, row.prefill_s] == [0.02, 0.07]
    assert [row.pre_transfer_s, row.transfer_s] == pytest.approx([0.05875, 0.03125], abs=1e-5)
    assert row.ttft_s == pytest.approx(0.195, abs=1e-5)
    assert (row.bytes, row.uncached_tokens, row.output_tokens) == (64 << 20, 768, 16)
    grades = {name: row.grade(name) for name in ("ttft_s", "bytes", "pre_transfer_s", "prefill_s")}
    assert grades == {
        "ttft_s": "estimated", "bytes": "estimated", "pre_transfer_s": "derived", "prefill_s": "measured",
    }  # fmt: skip


def test_without_a_transfer_the_decode_sides_own_marks_split_the_wait() -> None:
    row = joined(*pieces(DECODE, PREFILL.partition(", transfer_speed")[0]))
    assert [row.setup_s, row.admit_s, row.transfer_s] == pytest.approx([0.0, 0.03, 0.06], abs=1e-5)


def test_a_failed_transfer_names_request_and_peer() -> None:
    (failed,) = pieces(FAILED)
    assert isinstance(failed, HandleTransfer)
    assert (failed.keys, failed.peer, failed.error) == ((("id", "kvd-501-0000"),), "192.0.2.22", "transfer_exception")
    (failed,) = pieces(SGLANG_FAILED)
    assert isinstance(failed, HandleTransfer)
    assert (failed.keys, failed.error) == ((("id", "85e5"), ("room", "35")), "KVTransferError")
    (expired,) = pieces(
        "WARNING Releasing expired KV blocks for request cmpl-a-0-00aa11bb which were retrieved by 0 remote worker(s) "
        "before lease expired."
    )
    assert isinstance(expired, RequestPiece)
    assert (expired.keys, expired.error) == ((("id", "a"),), "KV blocks expired, read by 0 workers")
    (sending,) = pieces("ERROR Sending to 10.0.0.2:14579 failed (ret=-1) after 1.5s (12 descriptors, 4096 bytes)")
    assert isinstance(sending, HandleTransfer)
    assert (sending.peer, sending.error, sending.duration_s, sending.bytes) == ("10.0.0.2:14579", "ret -1", 1.5, 4096)


def test_lmcache_names_the_request_of_a_transfer() -> None:
    stored, retrieved = pieces(
        "LMCache INFO: [req_id=cmpl-a-0-00aa11bb] Stored 512 out of total 512 tokens. size: 0.0625 GB, cost 12.5 ms, "
        "throughput: 5.0000 GB/s; offload_time: 10.0000 ms, put_time: 2.5000 ms",
        "LMCache INFO: [req_id=cmpl-a-0-00aa11bb] Retrieved 256 out of 256 required tokens (from 512 total tokens). "
        "size: 0.0312 gb, cost 5.0000 ms, throughput: 6.2400 GB/s;",
    )
    assert isinstance(stored, HandleTransfer)
    assert isinstance(retrieved, HandleTransfer)
    assert (stored.keys, stored.direction, stored.bytes) == ((("id", "a"),), "push", 64 * 1048576)
    assert (stored.start_s, stored.duration_s) == (4999.9875, 0.0125)
    assert retrieved.direction == "pull"
    assert retrieved.bytes == pytest.approx(0.0312 * (1 << 30))


def test_statistics_lines_are_windows() -> None:
    one, other = pieces(STATISTICS, MOONCAKE)
    assert isinstance(one, WindowRecord)
    assert isinstance(other, WindowRecord)
    assert (one.start_s, one.end_s) == (4990.0, 5000.0)
    assert one.values["transfers"] == 29
    assert one.values["transfer_mean_seconds"] == pytest.approx(0.042803)
    assert one.values["transfer_mean_bytes"] == pytest.approx(10.345 * 1048576)
    assert other.values == {"transferred_bytes": pytest.approx(12.76 * 1048576)}
    assert (other.start_s, other.evidence) == (4999.0, {"transferred_bytes": "derived"})


def test_dynamos_estimate_stays_an_estimate() -> None:
    row = joined(*pieces(DYNAMO))
    assert (row.request_id, row.prefill_node, row.decode_node) == ("mine", "7", "8")
    assert (row.ttft_s, row.grade("ttft_s")) == (0.25, "measured")
    assert row.kv_wait_s == pytest.approx(0.13, abs=1e-5)
    assert row.grade("kv_wait_s") == "estimated"
    assert row.uncached_tokens == 80


@pytest.mark.parametrize("line", [
    "ReqTimeStats(type=prefill): queue_duration=1ms", "NIXL transfer failure: x | Context: {1: }",
    "KV Transfer metrics: none", '{"schema": "dynamo.request.trace.v1", "request": {}}', "dynamo.request.trace.v1 {",
])  # fmt: skip
def test_a_line_that_should_tell_and_does_not_is_an_error(line: str) -> None:
    with pytest.raises(ValueError):
        pieces(line)


def engine(**paths: object) -> Engine:
    return Engine(name="e", node="node-1", role="decode", **paths)  # type: ignore[arg-type]


def test_logs_are_followed_from_their_end_through_rotation_and_partial_lines(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    log.write_text(FAILED + "\n" + DECODE[:40])
    followers = Followers((engine(logs=(log,)),), LogReader(lambda: 1.0))
    assert followers.poll() == []
    with log.open("a") as file:
        file.write(DECODE[40:] + "\n" + DECODE[:30])
    # The line that was begun before is not the one it seems to be.
    assert followers.poll() == []
    with log.open("a") as file:
        file.write(DECODE[30:] + "\n")
        file.write("x" * (2 << 20) + "\n" + "no concern\n" + "ReqTimeStats(\n" + SGLANG_FAILED + "\n")
    found = []
    for _ in range(4):
        found += followers.poll()
    decode, failed = found
    assert isinstance(decode, RequestPiece)
    assert (decode.node, decode.side, failed.node) == ("node-1", "decode", "node-1")
    assert followers.events == {(("node-1", "e", "decode"), "peer_declared_dead"): 1}
    assert followers.invalid == 1
    assert "engine.log, line" in followers.errors[0]
    log.rename(tmp_path / "engine.log.1")
    log.write_text(FAILED + "\n")
    assert [len(followers.poll()) for _ in range(3)] == [0, 1, 0]
    os.truncate(log, 0)
    log.write_text(FAILED[:5])
    assert followers.poll() == []
    log.unlink()
    assert followers.poll() == []


def test_a_file_that_cannot_be_read_hides_no_other(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    log.touch()
    followers = Followers((engine(logs=(tmp_path, log), step_records=tmp_path),), LogReader(lambda: 1.0))
    assert followers.poll() == []
    log.write_text(FAILED + "\n")
    assert len(followers.poll()) == 1
    assert followers.missing == (f"{tmp_path}: Is a directory",) * 2


def test_step_records_from_before_the_start_are_not_replayed(tmp_path: Path) -> None:
    import msgspec

    def line(number: int) -> bytes:
        return msgspec.json.encode(PieceLine(transfers=(HandleTransfer(source="vllm plugin", duration_s=number),)))

    path = tmp_path / "steps.jsonl"
    path.write_bytes(b"".join(line(number) + b"\n" for number in range(3)) + line(3)[:9])
    followers = Followers((engine(step_records=path),), LogReader(lambda: 1.0))
    assert followers.poll() == []
    with path.open("ab") as file:
        file.write(line(3)[9:] + b"\n" + line(4) + b"\n")
    (transfer,) = followers.poll()
    assert isinstance(transfer, HandleTransfer)
    assert (transfer.duration_s, followers.invalid) == (4, 0)
    path.rename(tmp_path / "steps.jsonl.1")
    path.write_bytes(line(5) + b"\n")  # put aside: the new file is new as a whole
    assert [*followers.poll(), *followers.poll()] != []


def test_step_records_that_come_later_are_read_as_a_whole(tmp_path: Path) -> None:
    import msgspec

    path = tmp_path / "steps.jsonl"
    followers = Followers((engine(step_records=path),), LogReader(lambda: 1.0))
    assert followers
    assert followers.poll() == []
    assert followers.missing == (f"{path}: No such file or directory",)
    line = PieceLine(
        requests=(RequestPiece(keys=(("id", "a"),), source="vllm plugin", start_s=1.0),),
        transfers=(HandleTransfer(source="vllm plugin", node="told", duration_s=0.1),),
    )
    path.write_bytes(msgspec.json.encode(line) + b"\n" + b"[]\n")
    request, transfer = followers.poll()
    assert isinstance(request, RequestPiece)
    assert (request.node, request.side, transfer.node) == ("node-1", "decode", "told")
    assert [*followers.missing, followers.invalid] == [1]
