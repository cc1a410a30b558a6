"""The bundle that the recorder writes, read back by the reader that diagnose uses."""

import errno
import json
import logging
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvdiag.errors import InputError
from kvdiag.model.transfer import TransferRecord
from kvdiag.sources.bundle import read_bundle
from kvdiag_exporters import whole
from kvdiag_exporters.collectors.base import Engine, Setup, create_all
from kvdiag_exporters.recorder import Recorder, unseen
from kvdiag_exporters.scraper import Collection, Scraper
from kvdiag_exporters.stream import RecordStream
from tests.exporters.host import StillClock, write_host
from tests.trees import write_tree

ENGINES = (
    Engine(name="p", node="prefill-0", role="prefill"),
    Engine(name="d", node="decode-0", role="decode"),
    Engine(name="p2", node="decode-0", role="prefill"),
)


@pytest.fixture
def setup(tmp_path: Path) -> Setup:
    return write_host(tmp_path)


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def recorder_in(folder: Path, stream: RecordStream, **options: Any) -> Recorder:
    return Recorder(folder, "host-a", ENGINES, stream, 1.0, **options)


def test_a_recording_is_read_back_as_what_happened(setup: Setup, tmp_path: Path) -> None:
    clock, bundle = setup.clock, tmp_path / "bundle"
    assert isinstance(clock, StillClock)
    scraper = Scraper(create_all(setup), clock)
    recorder = Recorder(bundle, setup.node, setup.engines, setup.stream, 1.0, incident_start_s=1700001001.0)
    for step in range(3):
        clock.now_s = 1000.0 + step
        write_tree(
            f"proc/121/net/dev = x\\nx\\n eth0: {5000 + step} 50 0 0 0 0 0 0 {6000 + 9 * step} 60 0 0 0 0 0 0",
            setup.context.root,
        )
        recorder.write(scraper.collect(fresh=True))
    recorder.close()
    found = read_bundle(bundle)
    assert list(found.requests.ids) == ["a", "b", "c"]
    ttft = found.requests.number("ttft_s")
    assert ttft is not None
    assert ttft.tolist() == [0.5, 2.0, 1.0]
    wire = found.requests.number("wire_s")
    assert wire is not None
    assert np.isnan(wire).tolist() == [False, False, True]
    queue = found.requests.number("queue_s")
    assert queue is not None
    assert queue[:2].tolist() == [0.2, 0.0]
    assert np.isnan(queue[2])  # the record said -0.5
    series = {(one.node, one.device, one.metric): one for one in found.series}
    sent = series["prefill-0", "eth0", "nic.tx_bytes"]
    assert sent.value.tolist() == [6000, 6009, 6018]
    assert sent.time_s.tolist() == [1700001000.0, 1700001001.0, 1700001002.0]
    assert series["prefill-0", "eth0", "nic.link_gbps"].value.tolist() == [25.0] * 3
    assert series["prefill-0", None, "nic.retransmits"].value.tolist() == [3.0] * 3
    assert series["prefill-0", None, "nixl.transfers"].value.tolist() == [44.0] * 3
    assert series["prefill-0", None, "nixl.xfer_time_us"].value[0] == pytest.approx(906388 + 234723)
    assert series["prefill-0", "rxe0", "conn.qp_created"].value.tolist() == [0.0] * 3
    # The kernel's count of memory regions stands before NIXL's own; nothing of the host around the engine is recorded.
    assert (
        ("prefill-0", None, "reg.mr_registered") in series,
        ("prefill-0", "rxe0", "reg.mr_registered") in series,
    ) == (
        False,
        True,
    )
    assert {one.node for one in found.series} == {"prefill-0"}
    # Without an RDMA port at this node nothing falls back to TCP.
    assert "host.tcp_rx_bytes" not in {one.metric for one in found.series}
    assert (found.roles, found.sampling, found.incident_start_s) == ({"prefill-0": "prefill"}, 1.0, 1700001001.0)
    assert found.metrics["nixl.transfers"].kind == "counter"
    assert found.metrics["nic.link_gbps"].kind == "gauge"


def test_on_one_node_the_rdma_ports_are_the_nic(setup: Setup, tmp_path: Path) -> None:
    scraper = Scraper(create_all(setup), setup.clock)
    recorder = Recorder(tmp_path / "bundle", "host-a", (), setup.stream, 1.0)
    recorder.write(scraper.collect())
    recorder.close()
    found = {(row["device"], row["metric"]): row["value"] for row in rows(tmp_path / "bundle/counters.jsonl")}
    assert {device for device, metric in found if metric == "nic.tx_bytes"} == {"mlx5_bond_0/1", "mlx5_bond_1/1"}
    assert found["mlx5_bond_0/1", "nic.tx_bytes"] == 493827156
    assert found["mlx5_bond_0/1", "nic.link_gbps"] == 200
    assert found[None, "host.tcp_rx_bytes"] == 910
    meta = json.loads((tmp_path / "bundle/meta.json").read_text())
    assert meta["nodes"] == {"host-a": {"role": "both"}}


def test_changes_become_events(setup: Setup, tmp_path: Path) -> None:
    setup = Setup(
        node="prefill-0", engines=setup.engines, context=setup.context, stream=setup.stream, netlink=setup.netlink
    )
    scraper = Scraper(create_all(setup), setup.clock)
    recorder = Recorder(tmp_path / "bundle", "prefill-0", setup.engines, setup.stream, 1.0)
    clock = setup.clock
    assert isinstance(clock, StillClock)
    for change in (
        "",
        "sys/class/infiniband/mlx5_bond_0/ports/1/state = 1: DOWN\nproc/121/root/sys/class/net/eth0/operstate = down",
        "sys/class/infiniband/mlx5_bond_0/ports/1/state = 4: ACTIVE\n- proc/121",
    ):
        write_tree(change, setup.context.root)
        clock.now_s += 1
        recorder.write(scraper.collect(fresh=True))
    recorder.close()
    found = [(row["kind"], row["node"], row["detail"]) for row in rows(tmp_path / "bundle/events.jsonl")]
    assert sorted(found) == [
        ("engine_exit", "prefill-0", "demo"),
        ("link_down", "prefill-0", "eth0"),
        ("link_down", "prefill-0", "mlx5_bond_0/1"),
        ("link_up", "prefill-0", "mlx5_bond_0/1"),
    ]
    assert len(read_bundle(tmp_path / "bundle").events) == 4


def test_a_second_run_goes_on_where_a_crash_left_off(tmp_path: Path) -> None:
    folder, records = tmp_path / "bundle", tmp_path / "requests.jsonl"
    lines = [json.dumps({"request_id": name, "arrival_s": 1.0, "ttft_s": 0.5}) + "\n" for name in "abc"]
    records.write_text("".join(lines[:2]))
    for text in (None, "".join(lines)):
        if text is not None:
            with (folder / "requests.jsonl").open("a") as file:
                file.write('{"request_id": "cut')  # the line that was being written when the power failed
            records.write_text(text)
        stream = RecordStream()
        stream.follow(records)
        recorder = recorder_in(folder, stream)
        stream.poll()
        recorder.close()
    assert [row["request_id"] for row in rows(folder / "requests.jsonl")] == ["a", "b", "c"]
    assert stream.duplicates == 2
    meta = json.loads((folder / "meta.json").read_text())
    assert meta["nodes"] == {"prefill-0": {"role": "prefill"}, "decode-0": {"role": "both"}}
    assert [path.name for path in sorted(folder.iterdir())] == [
        "counters.jsonl", "events.jsonl", "meta.json", "requests.jsonl",
    ]  # fmt: skip


def test_meta_is_there_from_the_start(tmp_path: Path) -> None:
    recorder_in(tmp_path / "bundle", RecordStream(), incident_start_s=4.0).close()
    meta = json.loads((tmp_path / "bundle/meta.json").read_text())
    assert (meta["schema"], meta["sampling"], meta["incident_start_s"]) == ("kvdiag.bundle/1", 1, 4.0)


def test_a_full_disk_loses_whole_lines_and_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stream = RecordStream()
    recorder = recorder_in(tmp_path / "bundle", stream)
    recorder.write_records([TransferRecord(request_id="a", arrival_s=1.0)])
    write = os.write
    room = [10, 0]

    def full(file: int, data: bytes) -> int:
        if not room[0]:
            raise OSError(28, "No space left on device")
        return write(file, data[: room.pop(0)])

    monkeypatch.setattr(os, "write", full)
    with caplog.at_level(logging.ERROR):
        recorder.write_records([TransferRecord(request_id="b", arrival_s=2.0)])
    monkeypatch.setattr(os, "write", write)
    recorder.write_records([TransferRecord(request_id="c", arrival_s=3.0, ttft_s=0.1, wire_s=0.1)])
    recorder.close()
    assert stream.lost_lines == 1
    assert "No space left on device; 1 lines lost so far" in caplog.text
    assert [row["request_id"] for row in rows(tmp_path / "bundle/requests.jsonl")] == ["a", "c"]
    # Who reads the bundle is told, and so is who reads what a later run adds to it.
    for _ in range(2):
        assert any(note.startswith("1 lines could not be recorded") for note in read_bundle(tmp_path / "bundle").notes)
        recorder_in(tmp_path / "bundle", RecordStream()).close()


def no_room(*_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_disk_that_is_full_at_the_start_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stream = RecordStream()
    with monkeypatch.context() as full, caplog.at_level(logging.ERROR):
        full.setattr(whole, "put", no_room)
        recorder = recorder_in(tmp_path / "bundle", stream)
        recorder.write_records(record("a"))
        assert "not yet: " in recorder.describe() and not recorder.status()["recording"]
        never = recorder_in(tmp_path / "never", stream)
        never.close()
        assert not (tmp_path / "never").exists()
    assert "No space left on device; 0 lines lost so far" in caplog.text
    recorder.write_records(record("b"))
    recorder.write(Collection(time_s=1.0, monotonic_s=1.0, samples=(), outcomes={}))
    assert (recorder.status()["recording"], stream.lost_lines) == (True, 1)
    recorder.close()
    assert [row["request_id"] for row in rows(tmp_path / "bundle/requests.jsonl")] == ["b"]


def test_a_period_that_cannot_begin_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every minute it is tried again, in a folder of another name."""
    stream = RecordStream()
    before = recorder_in(tmp_path / "one", stream)
    monkeypatch.setattr(whole, "put", no_room)
    with pytest.raises(InputError, match=r"recorder\.path: .*two.*: No space left on device"):
        recorder_in(tmp_path / "two", stream, after=before)
    assert not (tmp_path / "two").exists()
    (tmp_path / "three").mkdir()
    with pytest.raises(InputError):
        recorder_in(tmp_path / "three", stream, after=before)
    assert list((tmp_path / "three").iterdir()) == []
    before.close()


def test_what_cannot_be_replaced_whole_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "meta.json"
    path.write_bytes(b"earlier")
    write = Path.write_bytes

    def half(self: Path, data: bytes) -> int:
        write(self, data[:2])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", half)
    with pytest.raises(OSError, match="No space"):
        whole.put(path, b"later")
    assert [(one.name, one.read_bytes()) for one in tmp_path.iterdir()] == [("meta.json", b"earlier")]


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"recorder\.path: .*/file/bundle: Not a directory"):
        recorder_in(tmp_path / "file/bundle", RecordStream())
    with pytest.raises(InputError, match=r"recorder\.path: .*/file is a file, not a folder"):
        recorder_in(tmp_path / "file", RecordStream())


def record(name: str) -> list[TransferRecord]:
    return [TransferRecord(request_id=name, arrival_s=1.0)]


def test_a_removed_folder_is_made_again_and_what_went_with_it_is_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder, stream = tmp_path / "bundle", RecordStream()
    recorder = recorder_in(folder, stream)
    recorder.write_records([*record("a"), *record("b")])
    shutil.rmtree(folder)
    recorder.write_records(record("c"))
    recorder.write_records(record("d"))
    assert [row["request_id"] for row in rows(folder / "requests.jsonl")] == ["c", "d"]
    assert json.loads((folder / "meta.json").read_text())["schema"] == "kvdiag.bundle/1"
    assert (stream.lost_lines, recorder.status()["lost_lines"]) == (2, 2)
    (line,) = caplog.messages
    assert line == f"{folder} was removed while it was recorded; 2 lines lost so far; recording into it anew"
    recorder.close()
    assert stream.lost_lines == 2


def test_where_the_folder_cannot_be_made_again_it_says_so_once_and_goes_on_when_it_can(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder, stream = tmp_path / "run/bundle", RecordStream()
    recorder = recorder_in(folder, stream)
    recorder.write_records(record("a"))
    shutil.rmtree(tmp_path / "run")
    (tmp_path / "run").write_text("in the way")
    for name in "bc":
        recorder.write_records(record(name))
    assert (recorder.status()["recording"], stream.lost_lines) == (False, 3)
    assert f"{folder} was removed while it was recorded, and cannot be made again" in recorder.problem
    assert len(caplog.messages) == 1
    (tmp_path / "run").unlink()
    recorder.write_records(record("d"))
    assert (recorder.status()["recording"], stream.lost_lines) == (True, 3)
    assert caplog.messages[1:] == [f"{folder}: recording again; 3 lines lost so far"]
    recorder.close()
    assert [row["request_id"] for row in rows(folder / "requests.jsonl")] == ["d"]


def test_a_bundle_that_was_moved_away_keeps_its_lines(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder, stream = tmp_path / "bundle", RecordStream()
    recorder = recorder_in(folder, stream)
    recorder.write_records(record("a"))
    folder.rename(tmp_path / "old")
    recorder.write_records(record("b"))
    recorder.close()
    assert stream.lost_lines == 0
    assert "was moved away" in caplog.text
    assert [row["request_id"] for row in rows(tmp_path / "old/requests.jsonl")] == ["a"]
    assert [row["request_id"] for row in rows(folder / "requests.jsonl")] == ["b"]


def test_a_removed_meta_is_written_again(tmp_path: Path) -> None:
    folder, stream = tmp_path / "bundle", RecordStream()
    recorder = recorder_in(folder, stream)
    before = (folder / "meta.json").read_bytes()
    (folder / "meta.json").unlink()
    recorder.write_records(record("a"))
    assert (folder / "meta.json").read_bytes() == before
    assert stream.lost_lines == 0
    recorder.close()


def test_counters_go_on_where_meta_cannot_be_written(
    setup: Setup, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    scraper = Scraper(create_all(setup), setup.clock)
    recorder = Recorder(tmp_path / "bundle", "host-a", (), setup.stream, 1.0)
    (tmp_path / "bundle/meta.json.new").mkdir()
    recorder.write(scraper.collect())
    assert "meta.json.new: Is a directory" in recorder.problem
    (tmp_path / "bundle/meta.json.new").rmdir()
    recorder.write(scraper.collect(fresh=True))
    recorder.close()
    told = [one for one in caplog.records if one.name == "kvdiag_exporters.recorder"]
    assert (recorder.problem, setup.stream.lost_lines, len(told)) == ("", 0, 2)
    assert {row["metric"] for row in rows(tmp_path / "bundle/counters.jsonl")} <= set(
        json.loads((tmp_path / "bundle/meta.json").read_text())["metrics"]
    )


def test_a_second_recorder_is_refused_with_the_pid_of_the_first(tmp_path: Path) -> None:
    folder = tmp_path / "bundle"
    first = recorder_in(folder, RecordStream())
    with pytest.raises(InputError, match=rf"recorder\.path: .*/bundle: another exporter \(pid {os.getpid()}\) records"):
        recorder_in(folder, RecordStream())
    first.write_records(record("a"))
    first.close()
    second = recorder_in(folder, RecordStream())
    assert second.describe() == f"recording into {folder}, continuing a bundle with 1 requests"
    second.close()


def test_a_lock_that_a_killed_recorder_left_is_taken_over(tmp_path: Path) -> None:
    (tmp_path / "recorder.lock").write_text("1\n")
    recorder = recorder_in(tmp_path, RecordStream())
    assert (tmp_path / "recorder.lock").read_text() == f"{os.getpid()}\n"
    recorder.close()
    assert not (tmp_path / "recorder.lock").exists()


@pytest.mark.parametrize(("name", "text", "message"), [
    ("meta.json", '{"schema": "kvdiag.bundle/99"}', "its schema is 'kvdiag.bundle/99'"),
    ("meta.json", "hi", "not the meta.json of a bundle"),
    ("meta.json", "[]", "not the meta.json of a bundle"),
    ("requests.jsonl", "hi", "no meta.json beside it"),
    ("events.jsonl", "hi\n", "no meta.json beside it"),
])  # fmt: skip
def test_what_is_no_bundle_is_refused_and_left_as_it_is(name: str, text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(InputError) as caught:
        recorder_in(tmp_path, RecordStream())
    assert str(caught.value).startswith(f"recorder.path: {tmp_path / name}: ")
    assert message in str(caught.value)
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [(name, text)]


def test_a_foreign_end_of_a_file_is_not_cut_off(tmp_path: Path) -> None:
    recorder_in(tmp_path, RecordStream()).close()
    (tmp_path / "requests.jsonl").write_text("hi")
    with pytest.raises(InputError, match=r"requests\.jsonl: its last line is not JSON"):
        recorder_in(tmp_path, RecordStream())
    assert (tmp_path / "requests.jsonl").read_text() == "hi"


def test_a_continued_bundle_keeps_what_its_meta_said(tmp_path: Path) -> None:
    recorder_in(tmp_path, RecordStream(), incident_start_s=4.0).close()
    before = json.loads((tmp_path / "meta.json").read_text())
    (tmp_path / "counters.jsonl").write_text('{"time_s": 1')
    recorder = Recorder(tmp_path, "host-a", (), RecordStream(), 1.0)
    assert recorder.describe().endswith("with 0 requests; dropped the cut-off last line of counters.jsonl")
    recorder.close()
    after = json.loads((tmp_path / "meta.json").read_text())
    assert (after["created"], after["incident_start_s"]) == (before["created"], 4.0)
    assert after["nodes"] == before["nodes"] | {"host-a": {"role": "both"}}


def test_engines_whose_counters_are_another_hosts_are_named() -> None:
    engines = [
        Engine(name="p", node="prefill-0"),
        Engine(name="q", node="prefill-1", pid=7),
        Engine(name="d", node="node-7"),
    ]
    (line,) = unseen(engines, "node-7")
    assert line.startswith(
        "no counters of NICs and host are recorded for p: its node is 'prefill-0', the exporter's 'node"
    )
