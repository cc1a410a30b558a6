import re
from pathlib import Path

import pytest

import kvdiag_exporters.derived
from kvdiag.attribution.causes import base as causes
from kvdiag.checks.base import discover
from kvdiag.cli import main

DERIVED = Path(kvdiag_exporters.derived.__path__[0])


EXPORTER = sorted(set(re.findall(r'"(EXP\d{3})"', "".join(path.read_text() for path in DERIVED.glob("*.py")))))


@pytest.mark.parametrize("code", [*(check.code for check in discover()), *EXPORTER])
def test_every_check_is_explained_in_either_case(code: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", code.lower()]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"# {code}: ")
    assert "## What to do" in out


@pytest.mark.parametrize("code", [cause.id for cause in causes.discover()])
def test_every_cause_is_explained(code: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", code]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"# {code}: ")
    assert len(out.partition("## What to do")[2].strip()) > 20


def test_an_unknown_cause_says_which_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "fabric.nonsense"]) == 64
    assert "there are fabric.congestion, fabric.incast, " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("code", "hint"),
    [
        ("GID999", "this family has GID001, "),
        ("gid", "this family has GID001, "),
        ("nonsense", "kvdiag explain --list"),
        ("KVFabricOnePortGuilty", "docs/runbooks/KVFabricOnePortGuilty.md"),
    ],
)
def test_an_unknown_code_says_where_to_look(code: str, hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", code]) == 64
    said = capsys.readouterr().err
    assert f"no check is called {code!r}; " in said
    assert hint in said


def test_the_list_names_every_check(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines] == sorted([*(check.code for check in discover()), *EXPORTER])
    assert "CON001: no user-space provider for an RDMA device" in lines


def test_without_a_code_the_list_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain"]) == 64
    assert "--list" in capsys.readouterr().err
