"""The forms of a preflight for machines: JUnit and the textfile collector."""

import json
import shutil
import subprocess
from pathlib import Path

import junitparser
import pytest
from prometheus_client.parser import text_string_to_metric_families

from kvdiag.cli import main
from tests.trees import HOSTS, write_tree

CASES = ["roce-bond", "no-rdma", "missing-address", "container-without-provider"]


def run(capsys: pytest.CaptureFixture[str], form: str, root: Path, *more: str) -> tuple[int, str]:
    code = main(["preflight", "--root", str(root), "--format", form, *more])
    return code, capsys.readouterr().out


def suite_of(text: str) -> junitparser.TestSuite:
    (suite,) = junitparser.JUnitXml.fromstring(text.encode())
    return suite


@pytest.mark.parametrize("name", CASES)
def test_junit_says_what_json_says(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    document = json.loads(run(capsys, "json", HOSTS / name)[1])
    code, text = run(capsys, "junit", HOSTS / name)
    suite = suite_of(text)
    failing = [item for item in document["findings"] if item["severity"] != "info"]
    assert suite.failures == len(failing) == sum(case.is_failure for case in suite)
    assert suite.errors == (1 if code == 3 else 0)
    skipped = sum(item["status"] in ("not_applicable", "not_observable") for item in document["checks"])
    assert suite.skipped == skipped == sum(case.is_skipped for case in suite)
    assert suite.tests == len(list(suite))
    assert suite.hostname == document["host"]
    for finding in failing:
        (case,) = [
            case for case in suite if case.name.endswith(f": {finding['subject']}") and finding["code"] in case.name
        ]
        (failure,) = case.result
        assert (failure.type, failure.message) == (finding["severity"], finding["summary"])
        assert finding["action"] in failure.text


def test_the_text_says_a_reason_once_that_many_checks_share(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "log").write_bytes(bytes(range(256)) * 8)
    _, text = run(capsys, "text", HOSTS / "no-rdma", "--log", str(tmp_path / "log"))
    document = json.loads(run(capsys, "json", HOSTS / "no-rdma", "--log", str(tmp_path / "log"))[1])
    hidden = [one for one in document["checks"] if one["status"] == "not_observable"]
    assert len(hidden) > 20 and text.count("is not text") == 1
    assert all(f"  {one['code']} {one['title']}" in text for one in hidden)
    assert all(one["detail"] in text for one in hidden)


def test_junit_lets_warnings_pass_where_only_critical_ones_fail(capsys: pytest.CaptureFixture[str]) -> None:
    code, text = run(capsys, "junit", HOSTS / "missing-address", "--fail-on", "critical")
    suite = suite_of(text)
    assert code == 0 and suite.failures == 0
    assert any("warning: " in (case.system_out or "") for case in suite)


def test_junit_survives_what_xml_cannot_hold(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_tree("base container-without-provider", tmp_path)
    (tmp_path / "proc/5151/environ").write_bytes(b'UCX_NET_DEVICES=a<&\x01\x0b\xff"]]>b\0')
    suite = suite_of(run(capsys, "junit", tmp_path, "--check", "TRN013")[1])
    assert suite.failures
    assert any('a<&\ufffd\ufffd\ufffd"]]>b' in item.message for case in suite for item in case.result)


@pytest.mark.parametrize("name", CASES)
def test_the_textfile_says_what_json_says(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    document = json.loads(run(capsys, "json", HOSTS / name)[1])
    code, text = run(capsys, "prometheus", HOSTS / name)
    samples = {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert samples["kvdiag_preflight_exit_code",] == code
    assert {status: samples["kvdiag_preflight_status", status] for status in ("passed", "warning", "critical")} == {
        status: float(document["verdict"]["status"] == status) for status in ("passed", "warning", "critical")
    }
    for severity in ("critical", "warning", "info"):
        assert samples["kvdiag_preflight_findings", severity] == document["verdict"][severity]
    for item in document["checks"]:
        ranks = ("critical", "warning", "info")
        found = {one["severity"] for one in document["findings"] if one["code"] == item["code"]}
        gravest = next(([severity] for severity in ranks if severity in found), [])
        labels = sorted([item["code"], item["status"], *gravest])
        assert samples[("kvdiag_preflight_check_status", *labels)] == 1
    if shutil.which("promtool") is None:
        pytest.skip("promtool is not installed (Debian package prometheus)")
    done = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_out_replaces_a_file_as_a_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "kvdiag.prom"
    run(capsys, "json", HOSTS / "roce-bond", "--out", str(file))
    inode = file.stat().st_ino
    code, printed = run(capsys, "prometheus", HOSTS / "roce-bond", "--out", str(file))
    assert (code, printed) == (0, "")
    assert file.stat().st_ino != inode
    assert file.stat().st_mode & 0o444 == 0o444
    assert list(text_string_to_metric_families(file.read_text()))
    assert [path.name for path in tmp_path.iterdir()] == ["kvdiag.prom"]
    run(capsys, "text", HOSTS / "roce-bond", "--out", str(file))
    assert file.read_text().startswith("no findings; ")
