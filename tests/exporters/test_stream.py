from pathlib import Path

import pytest

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
