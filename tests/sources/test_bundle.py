import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kvdiag.errors import InputError, UndeterminedError
from kvdiag.sources.bundle import read_bundle

ROW: dict[str, Any] = {
    "request_id": "a",
    "arrival_s": 10.0,
    "ttft_s": 1.0,
    "queue_s": 0.25,
    "wire_s": 0.5,
    "decode_node": "d0",
}


def write(folder: Path, name: str, rows: list[dict[str, Any]]) -> Path:
    (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_a_bundle_of_requests_alone(tmp_path: Path) -> None:
    bundle = read_bundle(write(tmp_path, "requests.jsonl", [ROW | {"request_id": "b", "arrival_s": 11}, ROW]))
    assert list(bundle.requests.ids) == ["a", "b"]  # sorted by arrival
    assert bundle.requests.numbers["queue_s"].tolist() == [0.25, 0.25]
    assert bundle.requests.labels["decode_node"].names == ("d0",)
    assert bundle.incident_start_s is None
    assert bundle.sampling is None
    assert any("meta.json is missing" in note for note in bundle.notes)


def test_null_is_not_observed_and_never_zero(tmp_path: Path) -> None:
    rows = [ROW | {"wire_s": None}, {key: value for key, value in ROW.items() if key != "decode_node"}]
    rows[1] |= {"request_id": "b", "arrival_s": 11}
    bundle = read_bundle(write(tmp_path, "requests.jsonl", rows))
    assert np.isnan(bundle.requests.numbers["wire_s"][0])
    assert bundle.requests.labels["decode_node"].codes.tolist() == [0, -1]
    assert bundle.requests.number("post_s") is None


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"wire_s": -0.1}, "requests.jsonl line 2: wire_s is -0.1"),
        ({"wire_s": "fast"}, "requests.jsonl line 2: wire_s is 'fast', not a number"),
        ({"wire_s": True}, "requests.jsonl line 2: wire_s is True, not a number"),
        ({"decode_node": 7}, "requests.jsonl line 2: decode_node is 7, not a text"),
        ({"request_id": "a", "wire_s": 0.4}, "requests.jsonl line 2: request_id 'a' is already that of"),
        ({"request_id": ""}, "requests.jsonl line 2: request_id is empty"),
        ({"arrival_s": None}, "requests.jsonl line 2: arrival_s is missing"),
        ({"wire_s": 0.9}, "requests.jsonl line 2: the stages add up to 1.15 s, more than ttft_s = 1 s"),
        ({"kv_wait_s": 0.1}, "requests.jsonl line 2: kv_wait_s and wire_s are both given"),
        ({"queue_s": 1e400}, "line 2"),
        ({"ttft_s": 1e308}, "requests.jsonl line 2: ttft_s is 1e+308, more than 1e+06 seconds"),
        ({"arrival_s": 1.8e12}, "requests.jsonl line 2: arrival_s is 1.8e+12, more than 1e+11 seconds; is it in milli"),
    ],
)
def test_bad_rows_are_named_by_line_and_field(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    write(tmp_path, "requests.jsonl", [ROW, ROW | {"request_id": "b"} | change])
    with pytest.raises(InputError) as caught:
        read_bundle(tmp_path)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_malformed_line_is_named(tmp_path: Path) -> None:
    (tmp_path / "requests.jsonl").write_text(json.dumps(ROW) + "\n{oops}\n" + json.dumps(ROW) + "\n")
    with pytest.raises(InputError, match=r"requests\.jsonl line 2: not a JSON object"):
        read_bundle(tmp_path)


def test_a_file_that_is_no_json_is_not_a_line_that_was_cut_off(tmp_path: Path) -> None:
    (tmp_path / "requests.jsonl").write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match=r"requests\.jsonl line 1: not a JSON object"):
        read_bundle(tmp_path)


def test_a_meta_file_that_is_cut_off_is_named_with_what_to_do(tmp_path: Path) -> None:
    write(tmp_path, "requests.jsonl", [ROW])
    (tmp_path / "meta.json").write_text('{"schema": "kv')
    with pytest.raises(InputError, match=r"/meta\.json: .*truncated; correct it, or remove it: the recording can be"):
        read_bundle(tmp_path)


def test_a_line_that_its_writer_did_not_finish_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "requests.jsonl").write_text(json.dumps(ROW) + '\n{"request_id": "b", "arr')
    bundle = read_bundle(tmp_path)
    assert len(bundle.requests) == 1
    assert any("requests.jsonl line 2: cut off" in note for note in bundle.notes)


def test_rows_that_repeat_exactly_are_dropped(tmp_path: Path) -> None:
    bundle = read_bundle(write(tmp_path, "requests.jsonl", [ROW, ROW]))
    assert len(bundle.requests) == 1
    assert any("1 row(s) repeat" in note for note in bundle.notes)


@pytest.mark.parametrize("missing", ["request_id", "arrival_s", "ttft_s"])
def test_a_missing_column_is_named(tmp_path: Path, missing: str) -> None:
    write(tmp_path, "requests.jsonl", [{key: value for key, value in ROW.items() if key != missing}])
    with pytest.raises(InputError, match=f"no column {missing}"):
        read_bundle(tmp_path)


def test_milliseconds_in_every_duration_are_noted(tmp_path: Path) -> None:
    rows = [ROW | {"request_id": str(i), "arrival_s": 1e9 + i, "ttft_s": 250.0, "wire_s": 240.0} for i in range(60)]
    (note,) = [one for one in read_bundle(write(tmp_path, "requests.jsonl", rows)).notes if "milliseconds" in one]
    assert "half of the 60 requests have a ttft_s above 250, yet all arrived within 59 s" in note
    rows = [row | {"ttft_s": 0.5, "wire_s": 0.24} for row in rows]
    assert not any("milliseconds" in one for one in read_bundle(write(tmp_path, "requests.jsonl", rows)).notes)


def test_milliseconds_among_seconds_are_refused(tmp_path: Path) -> None:
    write(tmp_path, "requests.jsonl", [ROW | {"ttft_s": 1000.0}])
    with pytest.raises(InputError, match="are both in seconds"):
        read_bundle(tmp_path)


def test_requests_of_one_instant_have_no_before_and_after(tmp_path: Path) -> None:
    write(tmp_path, "requests.jsonl", [ROW | {"request_id": "a"}, ROW | {"request_id": "b"}])
    with pytest.raises(UndeterminedError, match="all 2 requests have arrival_s"):
        read_bundle(tmp_path)


def test_no_requests_at_all_is_nothing_to_examine(tmp_path: Path) -> None:
    (tmp_path / "requests.jsonl").write_text("")
    with pytest.raises(UndeterminedError, match="nothing to examine"):
        read_bundle(tmp_path)


def test_a_folder_that_is_no_bundle(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is it a trace bundle"):
        read_bundle(tmp_path)
    with pytest.raises(InputError, match="no such folder"):
        read_bundle(tmp_path / "nowhere")
    archive = tmp_path / "bundle.tar.zst"
    archive.write_text("")
    with pytest.raises(InputError, match="unpack it first"):
        read_bundle(archive)


def test_both_forms_of_one_table_are_refused(tmp_path: Path) -> None:
    write(tmp_path, "requests.jsonl", [ROW])
    pq.write_table(pa.Table.from_pylist([ROW]), tmp_path / "requests.parquet")
    with pytest.raises(InputError, match="holds both"):
        read_bundle(tmp_path)


def test_parquet_and_json_lines_read_alike(tmp_path: Path) -> None:
    rows = [ROW, ROW | {"request_id": "b", "arrival_s": 11, "wire_s": None, "decode_node": None}]
    lines, columns = tmp_path / "lines", tmp_path / "columns"
    lines.mkdir()
    columns.mkdir()
    one = read_bundle(write(lines, "requests.jsonl", rows)).requests
    pq.write_table(pa.Table.from_pylist(rows), columns / "requests.parquet")
    other = read_bundle(columns).requests
    assert list(one.ids) == list(other.ids)
    for name, values in one.numbers.items():
        assert np.array_equal(values, other.numbers[name], equal_nan=True)
    assert one.labels["decode_node"].codes.tolist() == other.labels["decode_node"].codes.tolist()


def test_nan_in_parquet_is_refused_where_null_is_meant(tmp_path: Path) -> None:
    row = {name: [value] for name, value in (ROW | {"wire_s": float("nan")}).items()}
    pq.write_table(pa.table(row), tmp_path / "requests.parquet")
    with pytest.raises(InputError, match=r"requests\.parquet row 0: wire_s is NaN"):
        read_bundle(tmp_path)


def test_a_file_that_is_no_parquet(tmp_path: Path) -> None:
    (tmp_path / "requests.parquet").write_text("hello")
    with pytest.raises(InputError, match=r"requests\.parquet: not a readable Parquet file"):
        read_bundle(tmp_path)


def test_counters_become_series_and_unknown_names_are_kept_and_noted(tmp_path: Path) -> None:
    write(tmp_path, "requests.jsonl", [ROW])
    write(
        tmp_path,
        "counters.jsonl",
        [
            {"time_s": 2.0, "node": "d0", "device": None, "metric": "nic.cnp", "value": 5},
            {"time_s": 1.0, "node": "d0", "device": None, "metric": "nic.cnp", "value": 4},
            {"time_s": 1.0, "node": "d0", "device": "x/1", "metric": "my.own", "value": 1},
            {"time_s": 1.5, "node": "d0", "device": None, "metric": "nic.cnp", "value": None},
        ],
    )
    bundle = read_bundle(tmp_path)
    series = {(one.node, one.device, one.metric): one for one in bundle.series}
    assert series["d0", None, "nic.cnp"].value.tolist() == [4, 5]
    assert ("d0", "x/1", "my.own") in series
    assert bundle.metrics["nic.cnp"].kind == "counter"
    assert any("my.own" in note for note in bundle.notes)
    assert any("1 row(s) without" in note for note in bundle.notes)


def test_events(tmp_path: Path) -> None:
    write(tmp_path, "requests.jsonl", [ROW])
    write(
        tmp_path,
        "events.jsonl",
        [
            {"time_s": 2.0, "node": "d0", "kind": "mr_register", "pid": 7, "bytes": 4096},
            {"time_s": 1, "kind": "link_up"},
        ],
    )
    first, second = read_bundle(tmp_path).events
    assert (first.kind, first.node) == ("link_up", None)
    assert (second.pid, second.bytes, second.duration_s) == (7, 4096.0, None)


def test_empty_counters_and_events(tmp_path: Path) -> None:
    write(tmp_path, "requests.jsonl", [ROW])
    (tmp_path / "counters.jsonl").write_text("")
    (tmp_path / "events.jsonl").write_text("")
    bundle = read_bundle(tmp_path)
    assert bundle.series == ()
    assert bundle.events == ()


@pytest.mark.parametrize(
    ("meta", "words"),
    [
        ('{"schema": "kvdiag.bundle/9"}', "this kvdiag reads 'kvdiag.bundle/1'"),
        ('{"sampling": 3}', "sampling is 3"),
        ('{"metrics": {"x": {"kind": "histogram"}}}', "kind is 'histogram'"),
        ("{", "meta.json"),
        ('{"incident_start_s": "noon"}', "meta.json"),
    ],
)
def test_meta_is_checked(tmp_path: Path, meta: str, words: str) -> None:
    write(tmp_path, "requests.jsonl", [ROW])
    (tmp_path / "meta.json").write_text(meta)
    with pytest.raises(InputError) as caught:
        read_bundle(tmp_path)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("meta", "said"),
    [
        ('{"traceEvents": []}', "meta.json is no bundle's: its fields are traceEvents; read as if it were missing"),
        ("{}", "meta.json is no bundle's: its fields are none; read as if it were missing"),
        ('{"sampling": 0.5, "by": "us"}', "meta.json names no schema: read as kvdiag.bundle/1"),
        ('{"schema": "kvdiag.bundle/1"}', None),
    ],
)
def test_a_meta_that_is_another_programs_is_noted(tmp_path: Path, meta: str, said: str | None) -> None:
    write(tmp_path, "requests.jsonl", [ROW])
    (tmp_path / "meta.json").write_text(meta)
    assert [one for one in read_bundle(tmp_path).notes if "meta.json" in one] == ([] if said is None else [said])


def test_rows_of_something_else_are_refused_at_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A large file of another kind is not decoded to its end."""
    write(tmp_path, "requests.jsonl", [{"request_id": "a"}])
    with (tmp_path / "requests.jsonl").open("a") as file:
        file.write("not JSON\n")
    with pytest.raises(InputError, match=r"requests\.jsonl line 1: no column arrival_s; it has request_id"):
        read_bundle(tmp_path)


def test_what_the_exporter_records_of_nixl_is_known_and_many_other_names_are_counted(tmp_path: Path) -> None:
    write(tmp_path, "requests.jsonl", [ROW])
    names = ["nixl.transfers", "nixl.xfer_time_us", *(f"other.{n}" for n in range(9))]
    counters = [{"time_s": 10.0 + n, "node": "d0", "metric": name, "value": n} for name in names for n in range(2)]
    (note,) = (one for one in read_bundle(write(tmp_path, "counters.jsonl", counters)).notes if "counters" in one)
    assert note.startswith("counters: 9 metric(s) of other names were not used: other.0, ")
    assert note.endswith("other.4, ...")
