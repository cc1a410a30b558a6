import itertools
import json
import os
from pathlib import Path

import pytest

from kvdiag.errors import InputError
from kvdiag.model.preflight import PreflightDocument
from kvdiag.model.probe_cold import ColdDocument
from kvdiag.sources import report_inputs
from kvdiag.sources.bundle import read_bundle
from tests.report.html.samples import KINDS, RECORDED

COLD = (RECORDED / "cold.json").read_text()


def one_line(number: int) -> str:
    return json.dumps(json.loads(COLD) | {"host": f"h{number}"})


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_is_read_with_where_it_came_from(name: str) -> None:
    path = RECORDED / f"{name}.json"
    (item,) = report_inputs.read_items(path)
    assert item.input.path == str(path) and item.input.bytes == path.stat().st_size
    assert item.input.kind == json.loads(path.read_text())["schema"]
    assert item.input.made_by == "0.1.0" and item.input.made_at is not None and item.input.notes == ()


def test_a_file_with_a_document_in_each_line_gives_the_newest(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    path.write_text("".join(f"{one_line(number)}\n" for number in range(25)) + COLD.replace("\n", "")[:100])
    items = report_inputs.read_items(path)
    assert [item.content.host for item in items if isinstance(item.content, ColdDocument)] == [
        f"h{number}" for number in range(5, 25)
    ]
    assert items[0].input.path == f"{path}, line 6"
    assert items[0].input.notes == (
        "1 of its lines are no whole JSON document and were passed over",
        "5 older documents were left out; the newest 20 are here",
    )
    assert items[1].input.notes == ()


def test_documents_of_several_kinds_may_share_a_file(tmp_path: Path) -> None:
    path = tmp_path / "all.jsonl"
    lines = (json.dumps(json.loads((RECORDED / f"{name}.json").read_text())) for name in ("preflight", "cold"))
    path.write_text("\n".join(lines))
    first, second = report_inputs.read_items(path)
    assert isinstance(first.content, PreflightDocument) and isinstance(second.content, ColdDocument)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "empty"),
        (b"  \n ", "empty"),
        (COLD[:400].encode(), "not a whole JSON document"),
        (b"\x93NUMPY\x01\x00\xff\xfe", "not a whole JSON document"),
        (b"PAR1\x00\x00", "not a whole JSON document"),
        (b"[1, 2]", "JSON without a schema field"),
        (b"42", "JSON without a schema field"),
        (b'{"schema": 7}', "JSON without a schema field"),
        (b'{"schema": "kvdiag.snapshot/1"}', "nothing that a report shows; it shows diagnose, demo, preflight, probe"),
        (b'{"schema": "other"}', "'other' is nothing that a report shows"),
        (b'{"schema": "kvdiag.preflight/2"}', "this kvdiag reads kvdiag.preflight/1"),
        (b'{"schema": "kvdiag.preflight"}', "this kvdiag reads kvdiag.preflight/1"),
        (b'{"schema": "kvdiag.preflight/1"}', "no valid kvdiag.preflight/1: Object missing required field"),
        (COLD.replace('"size_bytes": 65536', '"size_bytes": "many"').encode(), r"Expected `int`, got `str`"),
        (b"[" * 100_000, "not a whole JSON document"),
        (b'{"a": 1}\n{"a": 2}\n', "2 lines of JSON without a schema field"),
    ],
    ids=itertools.count(),
)
def test_what_is_no_document_is_one_line(content: bytes, said: str, tmp_path: Path) -> None:
    path = tmp_path / "it.json"
    path.write_bytes(content)
    with pytest.raises(InputError, match=said) as caught:
        report_inputs.read_items(path)
    assert str(caught.value).startswith(str(path)) and "\n" not in str(caught.value)


def test_what_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(InputError, match="neither a regular file nor a folder"):
        report_inputs.read_items(pipe)
    with pytest.raises(InputError, match="No such file"):
        report_inputs.read_items(tmp_path / "absent")


def test_a_huge_file_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "huge.json"
    with path.open("wb") as file:
        file.truncate(report_inputs.LIMIT_BYTES + 1)
    with pytest.raises(InputError, match="134217729 bytes; at most 134217728"):
        report_inputs.read_items(path)


def test_a_bundles_folder_says_what_it_lacks(tmp_path: Path) -> None:
    row = {"request_id": "a", "arrival_s": 1.0, "ttft_s": 0.5, "wire_s": 0.1}
    (tmp_path / "requests.jsonl").write_text(json.dumps(row) + "\n")
    found = report_inputs.folder_input(tmp_path, read_bundle(tmp_path))
    assert found.kind == "trace bundle" and found.bytes == (tmp_path / "requests.jsonl").stat().st_size
    assert found.made_at is None and found.notes[-2:] == ("no counters: what needs them was not judged", "no events")
    assert any("meta.json is missing" in note for note in found.notes)
    for created, said in ((1_700_000_000.0, "2023-11-14T22:13:20Z"), ("yesterday", "yesterday"), (9e99, "9e+99")):
        (tmp_path / "meta.json").write_text(json.dumps({"schema": "kvdiag.bundle/1", "created": created}))
        assert report_inputs.folder_input(tmp_path, read_bundle(tmp_path)).made_at == said


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("bundle.tar.zst", "an archive; unpack it first"),
        ("requests.parquet", "a part of a trace bundle; give its folder"),
        ("meta.json", "a part of a trace bundle; give its folder"),
    ],
)
def test_parts_of_a_bundle_and_archives_are_named(name: str, said: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(COLD)
    with pytest.raises(InputError, match=said):
        report_inputs.read_items(tmp_path / name)


def test_a_byte_order_mark_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "cold.json"
    path.write_bytes(b"\xef\xbb\xbf" + COLD.encode())
    assert len(report_inputs.read_items(path)) == 1
