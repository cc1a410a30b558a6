"""Waivers: what is accepted for a while, with a reason, is shown but counts for nothing, until it expires."""

import json
from pathlib import Path
from typing import Any

import pytest

from kvdiag.cli import main
from tests.trees import HOSTS

WAIVER = '[[waiver]]\ncode = "CON001"\nreason = "image is rebuilt, OPS-42"\nexpires = 2999-12-31\n'


def run(
    capsys: pytest.CaptureFixture[str], config: Path, host: str = "container-without-provider", *more: str
) -> tuple[int, dict[str, Any]]:
    code = main(["preflight", "--root", str(HOSTS / host), "--config", str(config), "--format", "json", *more])
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return code, document


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return tmp_path / "preflight.toml"


def test_a_waived_cause_takes_what_follows_from_it_out_too(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config.write_text(WAIVER)
    code, document = run(capsys, config)
    assert code == 0
    assert document["findings"] == []
    assert [(item["finding"]["code"], item["expires"], item["reason"]) for item in document["waived"]] == [
        ("CON001", "2999-12-31", "image is rebuilt, OPS-42"),
        ("TRN001", "2999-12-31", "image is rebuilt, OPS-42"),
    ]
    assert document["verdict"]["waived"] == 2
    status = {item["code"]: item["status"] for item in document["checks"]}
    assert (status["CON001"], status["TRN001"], status["FAB002"]) == ("waived", "waived", "passed")
    main(["preflight", "--root", str(HOSTS / "container-without-provider"), "--config", str(config)])
    text = capsys.readouterr().out
    assert "; 2 waived" in text.splitlines()[0]
    assert "\nWaived:\n  CON001 " in text and "    until 2999-12-31: image is rebuilt, OPS-42\n" in text


def test_an_expired_waiver_brings_the_finding_back_with_a_note(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config.write_text(WAIVER.replace("2999-12-31", "2026-01-31"))
    code, document = run(capsys, config)
    assert code == 2
    assert document["findings"][0]["code"] == "CON001"
    (note,) = document["notes"]
    assert note == "the waiver of CON001 (image is rebuilt, OPS-42) expired on 2026-01-31: the finding is back"
    main(["preflight", "--root", str(HOSTS / "container-without-provider"), "--config", str(config)])
    assert f"Note: {note}\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("restriction", "waived"),
    [('host = "container-*"', True), ('host = "roce-*"', False), ('subject = "mlx5_bond_0*"', True),
     ('subject = "mlx5_7/1"', False), ('host = "c*"\nsubject = "*_1"', True)],
)  # fmt: skip
def test_host_and_subject_restrict_a_waiver(
    restriction: str, waived: bool, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config.write_text(WAIVER + restriction)
    code, document = run(capsys, config)
    assert (code == 0) is waived
    assert bool(document["waived"]) is waived


def test_a_waiver_of_no_check_is_noted(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config.write_text(WAIVER.replace("CON001", "XYZ999"))
    code, document = run(capsys, config, "roce-bond")
    assert code == 0
    assert document["notes"] == ["the waiver of XYZ999 names no check; kvdiag explain --list has them all"]


def test_everything_waived_and_nothing_passed_is_no_pass(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config.write_text(WAIVER)
    code, document = run(capsys, config, "container-without-provider", "--select", "CON001")
    assert (code, document["verdict"]["status"]) == (3, "undetermined")


def test_the_file_selects_and_flags_win(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config.write_text('select = ["GID"]\nignore = ["GID001"]\nfail_on = "critical"\n')
    code, document = run(capsys, config, "missing-address")
    assert code == 0
    codes = {item["code"] for item in document["checks"]}
    assert "GID003" in codes and "GID001" not in codes and all(item.startswith("GID") for item in codes)
    code, document = run(capsys, config, "missing-address", "--select", "GID003", "--fail-on", "warning")
    assert code == 1
    assert [item["code"] for item in document["checks"]] == ["GID003"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1", "unknown field `x`; the fields here are select, ignore, fail_on, waiver"),
        ("ignroe = ['GID']", "unknown field `ignroe`; did you mean `ignore`?"),
        ("fail_on = 'never'", "fail_on: Invalid enum value 'never'; give one of critical, warning"),
        ("[[waiver]]\ncode = 'GID001'\nreason = 'r'", "waiver 1: it has no expires; a waiver needs code, reason and"),
        ("[[waiver]]\ncode = 'GID001'\nexpires = 2026-01-01", "waiver 1: it has no reason"),
        ("[[waiver]]\ncode = 'GID001'\nreason = ' '\nexpires = 2026-01-01", "waiver 1: the reason is empty"),
        ("[[waiver]]\ncode = 'GID'\nreason = 'r'\nexpires = 2026-01-01", "waiver 1: code 'GID' is no check's code"),
        (
            "[[waiver]]\ncode = 'GID001'\nreason = 'r'\nexpires = 'soon'",
            "waiver 1: expires = 'soon' is no date; write expires = YYYY-MM-DD",
        ),
        ("[[waiver]]\ncode = 'GID001'\nreason = 'r'\nexpires = 2026-01-01\nhots = 'a'", "unknown key 'hots'"),
        ("waiver = 5", "waiver: write each as a table of its own, headed [[waiver]] and not [waiver]"),
        ("waiver = [5]", "waiver 1: not a table"),
        ("a = ", "Invalid value (at end of document)"),
    ],
)  # fmt: skip
def test_a_wrong_file_is_one_line_that_names_the_field(
    text: str, message: str, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config.write_text(text)
    assert main(["preflight", "--root", str(HOSTS / "roce-bond"), "--config", str(config)]) == 64
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.count("\n") == 1
    assert f"--config {config}: " in captured.err and message in captured.err


def test_an_absent_or_binary_file_is_one_line(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["preflight", "--config", str(config)]) == 64
    config.write_bytes(b"\xff\xfe")
    assert main(["preflight", "--config", str(config)]) == 64
    assert capsys.readouterr().err.count("\n") == 2
