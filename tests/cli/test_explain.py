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
    assert "no check is called 'GID999'; known: CON001, " in capsys.readouterr().err
