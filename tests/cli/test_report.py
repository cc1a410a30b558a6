import json
import resource
import shutil
from pathlib import Path

import jsonschema
import pytest

from kvdiag.cli import main
from kvdiag.report.json import published_schema
from tests.report.html.reading import read
from tests.report.html.samples import RECORDED

BUNDLE = RECORDED.parent / "bundles/fabric.tcp_fallback-severe"
COLD = RECORDED / "cold.json"


@pytest.fixture(autouse=True)
def _no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the chart library out, which takes seconds to put together: the page itself is tested elsewhere."""
    monkeypatch.setattr("kvdiag.report.html.page.chart_library", lambda: "/* charts */")


def said(capsys: pytest.CaptureFixture[str], code: int, *arguments: str | Path) -> str:
    assert main(["report", *map(str, arguments)]) == code
    out, err = capsys.readouterr()
    if code == 0:
        assert err == ""
        return out
    assert out == "" and err.count("\n") == 1 and "Traceback" not in err
    return err


def test_a_bundle_and_a_document_make_one_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "report.html"
    document = json.loads(said(capsys, 0, BUNDLE, COLD, "-o", path, "--format", "json"))
    jsonschema.validate(document, published_schema("kvdiag.report-1"))
    assert document["bytes"] == path.stat().st_size
    assert [(one["input"]["kind"], one["state"]) for one in document["inputs"]] == [
        ("trace bundle", "critical"), ("kvdiag.probe-cold/1", "good")
    ]  # fmt: skip
    assert [one["found"] for one in document["inputs"]] == [
        text for text in read(path.read_text()).said("p") if text in [one["found"] for one in document["inputs"]]
    ]
    text = said(capsys, 0, COLD, "-o", path)
    assert text.startswith(f"good: {COLD}: A first transfer") and f"wrote {path} (" in text


def test_an_earlier_report_is_replaced_and_nothing_else(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "report.html"
    said(capsys, 0, COLD, "-o", path)
    first = path.read_text()
    said(capsys, 0, RECORDED / "compare.json", "-o", path)
    assert path.read_text() != first
    notes = tmp_path / "notes.txt"
    notes.write_text("precious")
    assert "is not what kvdiag writes there; name another file, or give --force" in said(capsys, 64, COLD, "-o", notes)
    assert notes.read_text() == "precious"
    said(capsys, 0, COLD, "-o", notes, "--force")
    assert notes.read_text().startswith("<!doctype html>")
    empty = tmp_path / "empty"
    empty.touch()
    said(capsys, 0, COLD, "-o", empty)


def test_an_input_is_never_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "cold.json"
    shutil.copy(COLD, source)
    (tmp_path / "link.html").symlink_to(source)
    for output in (source, tmp_path / "link.html"):
        assert "that is the input" in said(capsys, 64, source, "-o", output, "--force")
    assert source.read_text() == COLD.read_text()
    bundle = shutil.copytree(BUNDLE, tmp_path / "bundle")
    assert "or lies in it" in said(capsys, 64, bundle, "-o", bundle / "meta.json", "--force")
    assert "or lies in it" in said(capsys, 64, bundle, "-o", bundle / "events.jsonl", "--force")
    assert not (bundle / "events.jsonl").exists()
    assert json.loads((bundle / "meta.json").read_text())


def test_what_fails_leaves_the_earlier_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "report.html"
    said(capsys, 0, COLD, "-o", path)
    before = path.read_bytes()
    broken = tmp_path / "broken.json"
    broken.write_text(COLD.read_text()[:300])
    assert "not a whole JSON document" in said(capsys, 64, COLD, broken, "-o", path)
    assert path.read_bytes() == before
    # As on a disk that is full after 4 KiB.
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        err = said(capsys, 3, RECORDED / "compare.json", "-o", path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert f"-o {path}: File too large" in err
    assert path.read_bytes() == before
    assert sorted(one.name for one in tmp_path.iterdir()) == ["broken.json", "report.html"]


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["absent.json"], 64, "absent.json: No such file or directory"),
        (["empty"], 64, "no requests.jsonl or requests.parquet in it"),
        (["no-requests"], 3, "no request"),
        ([str(COLD), "--incident-start", "5"], 64, "--incident-start and --incident-end are for one bundle; 0 of"),
        ([str(BUNDLE), "--incident-start", "5"], 64, "--incident-start 5.000 is outside the recorded arrivals"),
        ([str(COLD)] * 31, 64, "31 inputs; one report holds at most 30"),
    ],
)
def test_bad_input_is_one_line(
    arguments: list[str], code: int, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    Path("empty").mkdir()
    Path("no-requests").mkdir()
    Path("no-requests/requests.jsonl").touch()
    assert text in said(capsys, code, *arguments, "-o", "report.html")
    assert not Path("report.html").exists()


def test_bad_outputs_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "a folder; name a file in it" in said(capsys, 64, COLD, "-o", tmp_path)
    assert f"there is no folder {tmp_path / 'no'}" in said(capsys, 64, COLD, "-o", tmp_path / "no" / "r.html")
    assert "Missing option '--output'" in said(capsys, 64, COLD)
    assert "Missing argument 'INPUT'" in said(capsys, 64, "-o", tmp_path / "r.html")


def test_an_incident_can_be_given(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "report.html"
    start = json.loads((BUNDLE / "meta.json").read_text())["incident_start_s"]
    said(capsys, 0, BUNDLE, "--incident-start", str(start + 60), "--incident-end", str(start + 400), "-o", path)
    assert "given by the user" in path.read_text()
