"""The vLLM stat logger with statistics shaped as vLLM 0.33's (vllm/v1/metrics/stats.py, nixl/stats.py)."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from kvdiag.derive.join import Joiner
from kvdiag.model.piece_line import PieceLine
from kvdiag_exporters.plugins import line_writer, vllm, vllm_stats
from kvdiag_exporters.plugins.line_writer import LineWriter
from kvdiag_exporters.plugins.vllm import KvdiagStatLogger


@dataclass
class Finished:
    """FinishedRequestStats of vLLM 0.33."""

    request_id: str | None = "cmpl-kvd-1-0"
    finish_reason: str = "length"
    e2e_latency: float = 0.6
    num_prompt_tokens: int = 512
    num_cached_tokens: int = 128
    num_generation_tokens: int = 8
    num_preemptions: int = 0
    queued_time: float = 0.2
    prefill_time: float = 0.1
    inference_time: float = 0.4
    decode_time: float = 0.25
    mean_time_per_output_token: float = 0.03


@dataclass
class Iteration:
    finished_requests: list[Finished] = field(default_factory=list)
    time_to_first_tokens_iter: list[float] = field(default_factory=list)


def scheduler(**stats: Any) -> SimpleNamespace:
    return SimpleNamespace(num_running_reqs=1, kv_connector_stats=stats or None)


def config(role: str = "kv_consumer", connector: str = "NixlConnector", **extra: Any) -> SimpleNamespace:
    transfer = SimpleNamespace(kv_connector=connector, kv_role=role, kv_connector_extra_config=extra)
    return SimpleNamespace(kv_transfer_config=transfer)


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv(vllm_stats.VARIABLE, str(tmp_path / "steps.jsonl"))
    monkeypatch.setattr(vllm, "_writers", {})
    yield tmp_path / "steps.jsonl"
    for writer in vllm._writers.values():
        writer.close()


def written(path: Path) -> list[PieceLine]:
    for writer in vllm._writers.values():
        writer.close()
    decoder = msgspec.json.Decoder(PieceLine)
    return [decoder.decode(line) for line in path.read_bytes().splitlines()]


TWO = {
    "transfer_duration": [0.02, 0.03], "post_duration": [0.001, 0.002], "bytes_transferred": [4096, 8192],
    "num_descriptors": [2, 4], "num_failed_transfers": 0, "num_kv_expired_reqs": 1,
}  # fmt: skip


def test_each_handle_and_each_finished_request_is_a_piece(path: Path) -> None:
    logger = KvdiagStatLogger(config(), 0)
    before_s = time.time()
    logger.record(scheduler_stats=scheduler(**TWO), iteration_stats=Iteration([Finished()]), mm_cache_stats=None)
    (line,) = written(path)
    assert [one.bytes for one in line.transfers] == [4096, 8192]
    first = line.transfers[0]
    assert (first.duration_s, first.post_s, first.descriptors, first.direction) == (0.02, 0.001, 2, "pull")
    assert (first.keys, first.start_s) == ((), None)  # vLLM knows no request and no time of a transfer
    (window,) = line.windows
    assert window.values == {"NixlConnector.num_kv_expired_reqs": 1.0}
    (request,) = line.requests
    assert (request.keys, request.side) == ((("id", "kvd-1"),), "decode")
    assert request.start_s is not None
    assert before_s - 0.6 <= request.start_s <= time.time() - 0.6
    assert request.kv_present_s == pytest.approx(request.start_s + 0.2)
    assert request.first_token_s == pytest.approx(request.start_s + 0.35)
    assert (request.queue_s, request.uncached_tokens, request.prompt_tokens) == (None, None, 512)


def test_the_pieces_of_both_sides_join(path: Path) -> None:
    prefill, decode = KvdiagStatLogger(config("kv_producer"), 0), KvdiagStatLogger(config(), 0)
    prefill.record(scheduler(), Iteration([Finished(e2e_latency=0.3, queued_time=0.01, decode_time=0.0)]))
    decode.record(scheduler(), Iteration([Finished(e2e_latency=0.25, queued_time=0.05, decode_time=0.1)]))
    joiner = Joiner(settle_s=0.0)
    for line in written(path):
        for piece in line.requests:
            joiner.add(piece, 0.0)
    (row,) = joiner.take(0.0)
    assert (row.request_id, row.uncached_tokens, row.prompt_tokens) == ("kvd-1", 384, 512)
    assert row.grade("ttft_s") == "derived"
    assert row.sources == ("vllm plugin",)


def test_a_step_without_news_queues_nothing(path: Path) -> None:
    logger = KvdiagStatLogger(config(), 0)
    logger.record(scheduler(), Iteration())
    logger.record(None, None)
    assert vllm._writers[path]._thread is None
    assert not path.exists()


def test_without_the_variable_nothing_happens(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(vllm_stats.VARIABLE, raising=False)
    logger = KvdiagStatLogger(config(), 0)
    logger.record(scheduler(**TWO), Iteration([Finished()]))
    logger.log_engine_initialized()
    logger.log()
    logger.record_sleep_state(1, 0)


def test_lists_that_vllm_extends_later_are_not_told_twice(path: Path) -> None:
    stats: dict[str, Any] = {
        "transfer_duration": [0.02],
        "post_duration": [0.01],
        "bytes_transferred": [1],
        "num_descriptors": [1],
    }
    logger = KvdiagStatLogger(config(), 0)
    logger.record(scheduler(**stats), None)
    stats["transfer_duration"] += [9.0] * 100
    assert [len(line.transfers) for line in written(path)] == [1]


@pytest.mark.parametrize(("stats", "transfers", "failed"), [
    ({"MultiConnector": 0, "NixlConnector": {**TWO, "num_failed_transfers": 3}}, 2, 3.0),
    ({"NixlConnector": SimpleNamespace(data={**TWO, "num_failed_transfers": 3})}, 2, 3.0),
    ({"transfer_duration": [0.1, 0.2], "bytes_transferred": [5]}, 2, None),
    ({"num_failed_transfers": 3}, 0, 3.0),
])  # fmt: skip
def test_statistics_of_other_shapes(path: Path, stats: Any, transfers: int, failed: float | None) -> None:
    KvdiagStatLogger(config(), 0).record(scheduler(**stats), None)
    (line,) = written(path)
    assert len(line.transfers) == transfers
    counts = {name: value for window in line.windows for name, value in window.values.items()}
    assert counts.get("NixlConnector.num_failed_transfers") == failed


@pytest.mark.parametrize(("connector", "extra", "direction"), [
    ("NixlConnector", {}, "pull"), ("NixlPushConnector", {}, "push"), ("MooncakeConnector", {}, "push"),
    ("MoRIIOConnector", {"read_mode": True}, "pull"), ("MoRIIOConnector", {}, "push"), ("MultiConnector", {}, None),
    ("", {}, None),
])  # fmt: skip
def test_directions(connector: str, extra: dict[str, Any], direction: str | None) -> None:
    assert vllm_stats.direction_of(connector, extra) == direction


def test_what_cannot_be_understood_is_counted_and_told(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    logger = KvdiagStatLogger(config(), 0)
    logger.record(scheduler(transfer_duration=["soon"]), None)
    logger.record(SimpleNamespace(kv_connector_stats=object()), Iteration([Finished()]))
    writer = vllm._writers[path]
    deadline = time.monotonic() + 10
    while writer.lost < 1 and time.monotonic() < deadline:
        time.sleep(0.01)
    logger.record(scheduler(**TWO), None)
    windows = [window for line in written(path) for window in line.windows]
    assert sum(window.values.get("kvdiag.dropped_steps", 0.0) for window in windows) == 1.0
    assert sum("could not be understood" in message for message in caplog.messages) == 1


def test_a_full_queue_drops_and_never_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_writer, "MOST_QUEUED", 10)
    hold = threading.Event()

    def encode(item: int) -> bytes:
        hold.wait(10)
        return b"%d" % item

    writer = LineWriter(tmp_path / "out", encode)
    for number in range(100):
        writer.put(number)
    assert writer.dropped >= 100 - 2 * 10 - 1
    hold.set()
    writer.close()
    assert len((tmp_path / "out").read_text().splitlines()) == 100 - writer.dropped


def test_a_full_file_is_put_aside_and_no_line_is_split(tmp_path: Path) -> None:
    path = tmp_path / "out"
    one, other = (LineWriter(path, lambda item: b"x" * item, most_bytes=1000) for _ in range(2))
    for writer in (one, other):
        for _ in range(3):
            writer.put(400)
        writer.close()
    one._stop.clear()
    lines = b"".join(file.read_bytes() for file in sorted(tmp_path.iterdir())).splitlines()
    assert {len(line) for line in lines} == {400}
    assert len(lines) == 6
    assert (one.lost, other.lost) == (0, 0)


def test_a_disk_that_refuses_loses_lines_and_complains_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    writer = LineWriter(tmp_path / "no-folder/out", lambda item: b"x")
    for _ in range(5):
        writer.put(1)
    writer.close()
    assert writer.lost == 5
    assert len(caplog.messages) == 1
    assert "No such file or directory" in caplog.messages[0]


def test_a_forked_child_writes_its_own(tmp_path: Path) -> None:
    path = tmp_path / "out"
    program = f"""
import os
from pathlib import Path
from kvdiag_exporters.plugins.line_writer import LineWriter
writer = LineWriter(Path({str(path)!r}), lambda item: item)
writer.put(b"parent")
child = os.fork()
if child == 0:
    writer.put(b"child")
    writer.close()
    os._exit(0)
os.waitpid(child, 0)
"""
    environ = {**os.environ, "PYTHONWARNINGS": "ignore", "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", program], check=True, timeout=30, env=environ)
    assert sorted(path.read_text().split()) == ["child", "parent"]


def test_vllm_finds_it_by_its_entry_point() -> None:
    (found,) = entry_points(group="vllm.stat_logger_plugins", name="kvdiag")
    assert found.load() is KvdiagStatLogger
