import pytest

from kvdiag.checks.base import discover
from kvdiag.cli import main


@pytest.mark.parametrize("code", [check.code for check in discover()])
def test_every_check_is_explained_in_either_case(code: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", code.lower()]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"# {code}: ")
    assert "## What to do" in out


def test_an_unknown_code_names_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "GID999"]) == 64
    said = capsys.readouterr().err
    assert "no check is called 'GID999'; known: " in said
    assert " CON001, " in said


def test_the_list_names_every_check(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines] == [check.code for check in discover()]
    assert "CON001: no user-space provider for an RDMA device" in lines


def test_without_a_code_the_list_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain"]) == 64
    assert "--list" in capsys.readouterr().err
