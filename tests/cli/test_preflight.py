import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from kvdiag.cli import main
from kvdiag.report.json import published_schema
from tests.trees import HOSTS, write_tree


def as_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    code = main(["preflight", "--format", "json", *arguments])
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    jsonschema.validate(document, published_schema("kvdiag.preflight-1"))
    return code, document


@pytest.mark.parametrize(
    ("name", "code", "status"),
    [
        ("roce-bond", 0, "passed"),
        ("no-rdma", 3, "undetermined"),
        ("missing-address", 1, "warning"),
        ("container-without-provider", 2, "critical"),
    ],
)
def test_the_exit_code_follows_the_gravest_finding(
    name: str, code: int, status: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found, document = as_json(capsys, "--root", str(HOSTS / name))
    assert (found, document["verdict"]["status"]) == (code, status)


def test_notes_are_named_first_where_nothing_else_could_be_examined(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = '{"kv_connector":"NixlConnector","kv_role":"kv_both"}'
    command = rf"proc/7171/cmdline = python3\0/usr/local/bin/vllm\0serve\0m\0--kv-transfer-config\0{config}\0"
    write_tree(f"base no-rdma\n{command}", tmp_path)
    assert main(["preflight", "--root", str(tmp_path)]) == 3
    assert capsys.readouterr().out.startswith("2 notes; nothing else could be examined; 0 passed; ")


def test_nothing_examined_is_never_a_pass(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_tree("sys/kernel/", tmp_path)
    code, document = as_json(capsys, "--root", str(tmp_path))
    assert code == 3
    assert document["verdict"]["status"] == "undetermined"
    assert main(["preflight", "--root", str(tmp_path)]) == 3
    assert capsys.readouterr().out.startswith("nothing could be examined; 0 passed; ")


def test_a_cause_stands_before_what_it_explains(capsys: pytest.CaptureFixture[str]) -> None:
    _, document = as_json(capsys, "--root", str(HOSTS / "container-without-provider"))
    assert [(item["code"], item["explained_by"]) for item in document["findings"]] == [
        ("CON001", None),
        ("TRN001", "CON001"),
    ]
    assert document["host"] == "container-without-provider"


def test_the_text_starts_with_the_verdict_and_shows_evidence_and_action(capsys: pytest.CaptureFixture[str]) -> None:
    main(["preflight", "--root", str(HOSTS / "container-without-provider")])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("1 critical (1 more finding follows from these); ")
    assert lines[1] == "vllm process 5151: both, NixlConnector (UCX) pull"
    assert lines[3].startswith("CRITICAL CON001 2 of 2 RDMA device(s) cannot be used by programs")
    assert "  Do: apt-get install ibverbs-providers" in "\n".join(lines)
    assert "    follows from CON001; look again once that is put right" in lines


def test_verbose_shows_what_passed_and_what_does_not_apply(capsys: pytest.CaptureFixture[str]) -> None:
    main(["preflight", "--verbose", "--root", str(HOSTS / "roce-bond")])
    text = capsys.readouterr().out
    assert "\nPassed:\n" in text
    assert "  FAB002 ports are ACTIVE: 2 of 2 port(s) ACTIVE\n" in text
    assert text.count("\n  no peer given: name one with --peer HOST:PORT:\n") == 1
    assert "\n    MTU001 the active MTU is that of the peer\n" in text


def test_what_cannot_be_seen_is_said_with_its_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_tree("base roce-bond\n- proc/5151/limits", tmp_path)
    code, document = as_json(capsys, "--root", str(tmp_path))
    assert code == 0
    (hidden,) = [item for item in document["checks"] if item["code"] == "LIM001"]
    assert (hidden["status"], hidden["detail"]) == ("not_observable", "/proc/5151/limits does not exist")
    main(["preflight", "--root", str(tmp_path)])
    assert (
        "\n  LIM001 the serving process may lock its memory: /proc/5151/limits does not exist\n"
        in capsys.readouterr().out
    )


def test_a_peer_tree_is_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_tree(
        "base roce-bond\nproc/sys/kernel/hostname = roce-02\n- commands/ibv_devinfo.txt\n"
        "sys/devices/virtual/net/bond0/mtu = 1500",
        tmp_path,
    )
    code, document = as_json(capsys, "--root", str(HOSTS / "roce-bond"), "--peer-root", str(tmp_path))
    assert code == 1
    (finding,) = [item for item in document["findings"] if item["severity"] != "info"]
    assert finding["summary"] == "active MTU is 4096 on mlx5_bond_0/1 and 1024 on roce-02 mlx5_bond_0/1"
    assert document["peers"] == ["roce-02"]


def test_select_and_ignore_take_codes_and_families(capsys: pytest.CaptureFixture[str]) -> None:
    tree = ["--root", str(HOSTS / "container-without-provider")]
    code, document = as_json(capsys, "--select", "fab002", "--check", "GID003", *tree)
    assert code == 0
    assert [item["code"] for item in document["checks"]] == ["FAB002", "GID003"]
    _, document = as_json(capsys, "--select", "con,FAB002", "--ignore", "CON006", *tree)
    assert {item["code"] for item in document["checks"]} >= {"CON001", "FAB002"}
    assert {item["code"][:3] for item in document["checks"]} == {"CON", "FAB"}
    assert "CON006" not in {item["code"] for item in document["checks"]}
    code, document = as_json(capsys, "--ignore", "CON001,TRN", *tree)
    assert code == 0
    assert document["findings"] == []


def test_fail_on_critical_lets_warnings_pass_and_nothing_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    warned = ["--root", str(HOSTS / "missing-address")]
    assert as_json(capsys, *warned)[0] == 1
    code, document = as_json(capsys, "--fail-on", "critical", *warned)
    assert (code, document["verdict"]["status"], document["fail_on"]) == (0, "warning", "critical")
    assert as_json(capsys, "--fail-on", "critical", "--root", str(HOSTS / "container-without-provider"))[0] == 2
    write_tree("sys/kernel/", tmp_path)
    assert as_json(capsys, "--fail-on", "critical", "--root", str(tmp_path))[0] == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--root", "/nonexistent"], "--root /nonexistent: not a host's tree, it has no folder sys"),
        (["--peer-root", "/nonexistent"], "--peer-root /nonexistent: not a host's tree"),
        (
            ["--select", "XYZ999"],
            "--select XYZ999: no check and no family is called so; there are the families CNT, CON",
        ),
        (["--ignore", "GI"], "--ignore GI: no check and no family is called so"),
        (["--select", "GID", "--ignore", "gid"], "--select/--ignore: no check is left to run"),
        (["--pid", "99999999"], "--pid 99999999: there is no process 99999999"),
        (["--out", "/nonexistent/f"], "--out /nonexistent/f: there is no folder /nonexistent; make it first"),
    ],
)
def test_a_wrong_flag_is_one_line_and_64(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["preflight", *arguments]) == 64
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message.replace("CNT, ", "") in captured.err.replace("CNT, ", "")
    assert captured.err.count("\n") == 1


def test_this_machine_is_judged_live(capsys: pytest.CaptureFixture[str]) -> None:
    code, document = as_json(capsys)
    assert code in (0, 1, 2, 3)
    assert {item["code"]: item["status"] for item in document["checks"]}["TRN002"] in ("passed", "failed")


def test_a_pid_in_a_tree_chooses_the_process(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    write_tree(
        "base roce-bond\nproc/77/cmdline = /opt/engine\\0--fast\nproc/77/limits = Max locked memory 65536 65536 bytes\n"
        "proc/77/status = Name: engine\\nUid: 1000 1000 1000 1000\\nCapEff: 0000000000000000\n"
        "proc/77/uid_map =          0          0 4294967295\n",
        tmp_path,
    )
    code, document = as_json(capsys, "--root", str(tmp_path), "--pid", "77", "--check", "LIM001")
    assert code == 2
    assert document["findings"][0]["subject"] == "unknown process 77"


@pytest.mark.parametrize(
    ("arguments", "flag"),
    [
        (("--check", "FOO"), "--check"),
        (("--select", "FOO"), "--select"),
        (("--select", "GID", "--check", "FOO"), "--select/--check"),
    ],
)
def test_an_unknown_check_names_the_flag_that_it_was_given_with(
    arguments: tuple[str, ...], flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["preflight", *arguments]) == 64
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and f"error: {flag} FOO: no check and no family is called so" in err
