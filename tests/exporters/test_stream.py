"""Files of records: each read once, told of once, and read on beside scrapes."""

import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from kvdiag.model.transfer import TransferRecord
from kvdiag_exporters import stream as stream_module
from kvdiag_exporters.precedence import Precedence
from kvdiag_exporters.stream import RecordStream


def test_the_first_invalid_line_of_each_file_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    stream = RecordStream()
    paths = [tmp_path / name for name in ("a.jsonl", "b.jsonl")]
    for path in paths:
        path.write_text('{"request_id": "r", "arrival_s": 1.0}\nhi\n{"request_id": 3}\n')
        stream.follow(path)
    stream.poll()
    paths[0].write_text(paths[0].read_text() + "worse\n")
    stream.poll()
    assert [one.invalid for one in stream.followers] == [3, 2]
    assert [message.split(":")[0] for message in caplog.messages] == [f"{path}, line 2" for path in paths]


def test_a_folder_for_a_file_costs_only_its_own_records(tmp_path: Path) -> None:
    stream, given = RecordStream(), list[str]()
    stream.add_sink(lambda records: given.extend(one.request_id for one in records))
    for path in (tmp_path / "folder", tmp_path / "file"):
        stream.follow(path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text('{"request_id": "r", "arrival_s": 1.0}\n')
    stream.poll()
    assert given == ["r"]
    assert stream.missing == (f"{tmp_path / 'folder'}: Is a directory",)
    assert stream.backlog_bytes() == 0


def test_a_thread_reads_on_in_pieces_and_a_collection_reads_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_module, "PIECE_BYTES", 100)
    monkeypatch.setattr(stream_module, "FOLLOW_EVERY_S", 0.01)
    stream, given, over = RecordStream(), list[str](), threading.Event()
    batches: list[int] = []

    def sink(records: Sequence[TransferRecord]) -> None:
        given.extend(one.request_id for one in records)
        batches.append(len(records))
        if len(given) == 50:
            over.set()

    stream.add_sink(sink)
    path = tmp_path / "a.jsonl"
    path.write_text("".join(f'{{"request_id": "r{number}", "arrival_s": 1.0}}\n' for number in range(50)))
    stream.follow(path)
    thread = threading.Thread(target=stream.follow_on, args=(Precedence(), over))
    thread.start()
    thread.join(30)
    assert stream.followed
    assert given == [f"r{number}" for number in range(50)]
    assert max(batches) <= 3


def test_what_fails_while_reading_on_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_module, "FOLLOW_EVERY_S", 0.0)
    stream, over = RecordStream(), threading.Event()
    tries = 0

    def poll(most_bytes: int) -> int:
        nonlocal tries
        tries += 1
        if tries < 3:
            raise OSError("a disk that fails")
        over.set()
        return 0

    monkeypatch.setattr(stream, "poll", poll)
    stream.follow_on(Precedence(), over)
    assert tries == 3
