import json
from pathlib import Path

import pytest

from kvdiag.cli import main
from tests.trees import HOSTS, LOGS

HOST = str(HOSTS / "dgx-8x-infiniband")


def preflight(*arguments: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    code = main(["preflight", "--root", HOST, *arguments])
    out, err = capsys.readouterr()
    return code, out, err


def test_the_card_that_all_failures_name_comes_first_and_the_rest_follows(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = preflight("--log", str(LOGS / "mooncake-sick-nic.log"), "--format", "json", capsys=capsys)
    findings = json.loads(out)["findings"]
    assert code == 2
    assert findings[0]["code"] == "FAB004"
    assert findings[0]["devices"] == ["mlx5_5"]
    assert {item["code"]: item["explained_by"] for item in findings[1:]} == {"WC012": "FAB004", "ENG014": "FAB004"}


def test_several_logs_are_judged_together(capsys: pytest.CaptureFixture[str]) -> None:
    flushed, first = str(LOGS / "nccl-only-flush.log"), str(LOGS / "nccl-names.log")
    _, out, _ = preflight("--log", flushed, "--check", "WC005", "--format", "json", capsys=capsys)
    assert [(item["code"], item["severity"]) for item in json.loads(out)["findings"]] == [("WC005", "info")]
    code, out, _ = preflight(
        "--log", flushed, "--log", first, "--check", "WC005", "--check", "WC012", "--format", "json", capsys=capsys
    )
    assert (code, [item["code"] for item in json.loads(out)["findings"]]) == (1, ["WC012"])


def test_a_log_that_is_not_there_is_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, out, err = preflight("--log", str(tmp_path / "absent.log"), capsys=capsys)
    assert (code, out) == (64, "")
    assert len(err.splitlines()) == 1
    assert "absent.log" in err


def test_a_compressed_log_is_not_observable_and_stops_nothing(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    packed = tmp_path / "engine.log.gz"
    packed.write_bytes(b"\x1f\x8b\x08\0\0\0\0\0")
    code, out, _ = preflight("--log", str(packed), "--format", "json", capsys=capsys)
    checks = {item["code"]: item for item in json.loads(out)["checks"]}
    assert code == 0
    assert checks["WC012"]["status"] == "not_observable"
    assert "not text" in checks["WC012"]["detail"]
    assert checks["FAB002"]["status"] == "passed"
