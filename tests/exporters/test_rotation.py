"""Bundles that follow one another: what goes where, what is kept, and what is never removed."""

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from kvdiag.errors import InputError
from kvdiag.model.transfer import TransferRecord
from kvdiag.sources.bundle import read_bundle
from kvdiag_exporters import parquet
from kvdiag_exporters.collectors import netdev
from kvdiag_exporters.recorder import Recorder
from kvdiag_exporters.rotation import RotatingRecorder
from kvdiag_exporters.scraper import Collection
from kvdiag_exporters.stream import RecordStream

T0 = 1_767_225_600.0  # 2026-01-01T00:00:00Z


def recorder(
    folder: Path, stream: RecordStream, now_s: float = T0, keep: int = 3, *, parquet: bool = False
) -> RotatingRecorder:
    def make(path: Path, after: Recorder | None) -> Recorder:
        return Recorder(path, "host-a", (), stream, 1.0, attach=False, after=after)

    found = RotatingRecorder(folder, make, 3600.0, keep, now_s, parquet=parquet)
    stream.add_sink(found.write_records)
    return found


def collection(time_s: float, up: float = 1.0) -> Collection:
    sample = netdev.UP.sample(up, *["host-a", "", "eth0"][: len(netdev.UP.labels)])
    return Collection(time_s=time_s, monotonic_s=time_s, samples=(sample,), outcomes={})


def record(number: int, **more: object) -> TransferRecord:
    return TransferRecord(request_id=f"r{number}", arrival_s=T0 + number, ttft_s=0.5, queue_s=0.2, **more)  # type: ignore[arg-type]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def ids(bundle: Path) -> list[str]:
    return [json.loads(line)["request_id"] for line in (bundle / "requests.jsonl").read_text().splitlines()]


def test_each_period_has_its_own_bundle_and_the_newest_are_kept(tmp_path: Path) -> None:
    stream = RecordStream()
    rotating = recorder(tmp_path, stream)
    for hour in range(5):
        rotating.write(collection(T0 + 3600 * hour))
        stream.give([record(2 * hour), record(2 * hour + 1, evidence={"ttft_s": "derived"}, sources=("vllm span",))])
    assert rotating.status()["bundles"] == 3
    rotating.close()
    assert names(tmp_path) == ["20260101T020000Z", "20260101T030000Z", "20260101T040000Z"]
    assert ids(tmp_path / "20260101T040000Z") == ["r8", "r9"]
    bundle = read_bundle(tmp_path / "20260101T030000Z")
    assert bundle.requests.ids == ["r6", "r7"]
    assert bundle.notes == ()


@pytest.mark.parametrize("parquet", [False, True])
def test_an_idle_night_pushes_out_no_incident(tmp_path: Path, *, parquet: bool) -> None:
    stream = RecordStream()
    rotating = recorder(tmp_path, stream, parquet=parquet)
    for hour in range(14):
        rotating.write(collection(T0 + 3600 * hour))
        if hour < 4:
            stream.give([record(hour)])
        if rotating._rewriting is not None:
            rotating._rewriting.wait()
    # Three with requests, of which the one being written may become one; three idle ones; nothing grows for ever.
    assert names(tmp_path) == [f"20260101T{hour:02d}0000Z" for hour in (2, 3, 10, 11, 12, 13)]
    stream.give([record(100)])
    rotating.write(collection(T0 + 3600 * 14))
    assert names(tmp_path) == [f"20260101T{hour:02d}0000Z" for hour in (3, 10, 11, 12, 13, 14)]
    rotating.close()


def test_fewer_than_are_kept_all_stay(tmp_path: Path) -> None:
    stream = RecordStream()
    rotating = recorder(tmp_path, stream, keep=6)
    for hour in range(5):
        rotating.write(collection(T0 + 3600 * hour))
        stream.give([record(hour)])
    rotating.close()
    assert len(names(tmp_path)) == 5


def test_the_link_that_fell_between_two_bundles_is_an_event_of_the_second(tmp_path: Path) -> None:
    rotating = recorder(tmp_path, RecordStream())
    rotating.write(collection(T0))
    rotating.write(collection(T0 + 3600, up=0.0))
    rotating.close()
    events = (tmp_path / "20260101T010000Z/events.jsonl").read_text()
    assert json.loads(events)["kind"] == "link_down"


def test_a_period_that_is_not_over_is_continued(tmp_path: Path) -> None:
    recorder(tmp_path, RecordStream()).close()
    continued = recorder(tmp_path, RecordStream(), T0 + 1800)
    assert "20260101T000000Z" in continued.describe()
    continued.write(collection(T0 + 3599))
    continued.write(collection(T0 + 3600))
    continued.close()
    assert names(tmp_path) == ["20260101T000000Z", "20260101T010000Z"]
    later = recorder(tmp_path, RecordStream(), T0 + 9000)
    later.close()
    assert names(tmp_path)[-1] == "20260101T023000Z"


def test_what_is_not_its_own_is_left(tmp_path: Path) -> None:
    for name in ("20250101T000000Z", "20250102T000000Z", "20250103T000000Z", "99999999T999999Z", "notes"):
        (tmp_path / name).mkdir()
    for name in ("20250101T000000Z", "20250102T000000Z"):
        (tmp_path / name / "meta.json").write_text("{}")
    (tmp_path / "20250101T000000Z/mine.txt").write_text("x")
    recorder(tmp_path, RecordStream(), keep=1).close()
    assert names(tmp_path) == [
        "20250101T000000Z", "20250103T000000Z", "20260101T000000Z", "99999999T999999Z", "notes",
    ]  # fmt: skip


def test_where_no_new_bundle_can_be_begun_the_old_one_goes_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    stream = RecordStream()
    rotating = recorder(tmp_path, stream)
    (tmp_path / "20260101T010000Z").write_text("in the way")
    (tmp_path / "20260101T010100Z").write_text("in the way")
    for second in (0, 1, 60):
        rotating.write(collection(T0 + 3600 + second))
    stream.give([record(1)])
    assert "is a file, not a folder" in rotating.status()["rotation_problem"]
    assert sum("going on in the old bundle" in message for message in caplog.messages) == 1
    rotating.write(collection(T0 + 3600 + 120))
    assert rotating.status()["rotation_problem"] == ""
    rotating.close()
    assert ids(tmp_path / "20260101T000000Z") == ["r1"]
    assert stream.lost_lines == 0


def test_a_second_exporter_is_refused(tmp_path: Path) -> None:
    first = recorder(tmp_path, RecordStream())
    with pytest.raises(InputError, match="another exporter"):
        recorder(tmp_path, RecordStream(), T0 + 5)
    first.close()


def test_a_clock_that_was_years_ahead_leaves_no_bundle_behind_that_never_ends(tmp_path: Path) -> None:
    stream = RecordStream()
    rotating = recorder(tmp_path, stream, keep=1)
    rotating.write(collection(T0))
    rotating.write(collection(T0 + 6e8))
    rotating.write(collection(T0 + 5))
    stream.give([record(1)])
    rotating.write(collection(T0 - 30))  # a small step back is the same period
    stream.give([record(2)])
    rotating.write(collection(T0 + 3610))
    stream.give([record(3)])
    rotating.close()
    assert ids(tmp_path / "20260101T010010Z") == ["r3"]
    assert names(tmp_path) == ["20260101T010010Z", "20450105T104000Z"]
    assert stream.lost_lines == 0


def test_bundles_that_are_over_become_parquet_and_read_the_same(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stream = RecordStream()
    rotating = recorder(tmp_path / "plain", stream)
    twin = RecordStream()
    packed = recorder(tmp_path / "packed", twin, parquet=True)
    for hour in range(3):
        for one, given in ((rotating, stream), (packed, twin)):
            one.write(collection(T0 + 3600 * hour))
            given.give([record(2 * hour), record(2 * hour + 1, evidence={"ttft_s": "derived"}, sources=("vllm span",))])
    assert packed._rewriting is not None
    assert packed._rewriting.wait(60) == 0
    packed._rewrite()  # as the next rotation does: the first run may have begun before the second bundle was over
    if (again := packed._rewriting) is not None:
        assert again.wait(60) == 0
    over, current = tmp_path / "packed" / "20260101T010000Z", tmp_path / "packed" / "20260101T020000Z"
    assert "requests.parquet" in names(over) and "requests.jsonl" not in names(over)
    assert "requests.jsonl" in names(current)
    mine, theirs = read_bundle(over), read_bundle(tmp_path / "plain" / "20260101T010000Z")
    assert mine.requests.ids == theirs.requests.ids == ["r2", "r3"]
    assert mine.requests.numbers.keys() == theirs.requests.numbers.keys()
    assert all((mine.requests.numbers[name] == column).all() for name, column in theirs.requests.numbers.items())
    assert [(one.node, one.metric, one.value.tolist()) for one in mine.series] == [
        (one.node, one.metric, one.value.tolist()) for one in theirs.series
    ]
    rotating.close()
    packed.close()
    assert caplog.messages == []
    # What is no part of a bundle stays; a bundle of Parquet is removed like any other.
    recorder(tmp_path / "packed", RecordStream(), T0 + 3600 * 3, keep=1).close()
    assert names(tmp_path / "packed") == ["20260101T030000Z"]


def test_a_table_that_cannot_be_rewritten_stays_and_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bundle = tmp_path / "20260101T010000Z"
    bundle.mkdir()
    (bundle / "requests.jsonl").write_text('{"request_id":"a","ttft_s":1}\n{"request_id":7}\n')
    assert parquet.main([str(bundle)]) == 1
    assert "request_id is a text in one row and a number in another" in capsys.readouterr().err
    assert names(bundle) == ["requests.jsonl"]
    (bundle / "requests.jsonl").write_text(
        '{"request_id":"a","ttft_s":1,"none":null,"sources":["x"]}\n{"request_id":"b"'
    )
    assert parquet.main([str(bundle)]) == 0
    assert pq.read_table(bundle / "requests.parquet").to_pylist() == [
        {"request_id": "a", "ttft_s": 1.0, "sources": '["x"]'}
    ]
    assert parquet.start([bundle]) is None
