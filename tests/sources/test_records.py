from pathlib import Path

import pytest

from kvdiag.model.missing import Missing
from kvdiag.sources.line_follower import LineFollower
from kvdiag.sources.records import LINE_BYTES, RecordFollower


def line(name: str, **values: object) -> str:
    fields = "".join(f', "{key}": {value}' for key, value in values.items())
    return f'{{"request_id": "{name}", "arrival_s": 1.5{fields}}}\n'


def names(follower: RecordFollower) -> list[str]:
    found = follower.read()
    assert not isinstance(found, Missing)
    return [one.request_id for one in found]


def append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def test_whole_lines_are_read_once_as_they_come(tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    follower = RecordFollower(path)
    assert isinstance(follower.read(), Missing)
    append(path, line("a", ttft_s=0.25) + line("b")[:20])
    (record,) = follower.read()  # type: ignore[misc]
    assert (record.request_id, record.ttft_s, record.wire_s) == ("a", 0.25, None)
    assert names(follower) == []
    append(path, line("b")[20:] + "\n")
    assert names(follower) == ["b"]
    assert (follower.records, follower.invalid, follower.backlog_bytes()) == (2, 0, 0)


def test_rotation_loses_no_line(tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    append(path, line("a"))
    follower = RecordFollower(path)
    assert names(follower) == ["a"]
    append(path, line("b"))
    path.rename(tmp_path / "requests.jsonl.1")
    append(path, line("c"))
    assert names(follower) + names(follower) == ["b", "c"]
    assert follower.restarts == 1


def test_truncation_begins_anew(tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    append(path, line("a") + line("b"))
    follower = RecordFollower(path)
    assert names(follower) == ["a", "b"]
    path.write_text(line("c"))
    assert names(follower) == ["c"]
    assert follower.restarts == 1


@pytest.mark.parametrize(("bad", "reason"), [
    ("not json\n", "malformed"),
    ('{"request_id": "x"}\n', "arrival_s"),
    (line("x", ttft_s='"soon"'), "ttft_s"),
    ("\0\1\2\xff\n", "malformed"),
    (line("x", z="[" * 5000), "recursion"),
    (line("x", detail='"' + "y" * LINE_BYTES + '"'), f"longer than {LINE_BYTES} bytes"),
])  # fmt: skip
def test_a_bad_line_is_counted_and_named_and_hides_no_other(bad: str, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    follower = RecordFollower(path)
    append(path, line("a") + bad[:-100])
    assert names(follower) == ["a"]
    append(path, bad[-100:] + line("b"))
    assert names(follower) == ["b"]
    assert follower.invalid == 1
    assert reason in follower.last_error
    assert str(path) in follower.last_error


def test_a_backlog_is_read_in_bounded_pieces(tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    append(path, "".join(line(str(i)) for i in range(100)))
    follower = RecordFollower(path)
    first = follower.read(limit_bytes=1000)
    assert not isinstance(first, Missing)
    assert 0 < len(first) < 100
    assert follower.backlog_bytes() > 0
    assert [one.request_id for one in first] + names(follower) == [str(i) for i in range(100)]


def test_a_folder_is_no_file_and_stops_nobody(tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    path.mkdir()
    follower = RecordFollower(path)
    for _ in range(2):
        missing = follower.read()
        assert isinstance(missing, Missing)
        assert missing.missing == f"{path}: Is a directory"
        assert follower.backlog_bytes() == 0
    path.rmdir()
    append(path, line("a"))
    follower.read()
    assert names(follower) == ["a"]


def test_a_file_that_became_a_folder_goes_on_once_it_is_a_file_again(tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    append(path, line("a"))
    follower = RecordFollower(path)
    assert names(follower) == ["a"]
    path.unlink()
    path.mkdir()
    assert names(follower) == []
    assert isinstance(follower.read(), Missing)
    path.rmdir()
    append(path, line("b"))
    follower.read()
    assert names(follower) == ["b"]


def test_a_log_followed_from_its_end_may_be_a_folder_at_first(tmp_path: Path) -> None:
    path = tmp_path / "engine.log"
    path.mkdir()
    follower = LineFollower(path, bytes.decode, from_end=True)
    assert isinstance(follower.read(), Missing)
    path.rmdir()
    append(path, "first\n")
    follower.read()
    assert follower.read() == ("first",)
