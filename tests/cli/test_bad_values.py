"""Values that a flag's type refuses: the value is shown, with its bound."""

import pytest

from kvdiag.cli import main


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--timeout", "nan"], "Invalid value for '--timeout': 'nan': give a number of at most 600 (see"),
        (["--timeout", "700"], "Invalid value for '--timeout': '700': give a number of at most 600 (see"),
        (["--rounds", "0"], "Invalid value for '--rounds': '0': give a number of at least 1 (see"),
        (["--rounds", "x"], "Invalid value for '--rounds': 'x': give a whole number (see"),
        (["--timeout", "x"], "Invalid value for '--timeout': 'x': give a number (see"),
        (["--format", "xml"], "'xml' is not one of 'text', 'json' (see"),
        (["--op", "push"], "Invalid value for '--op': 'push' is not one of 'write', 'read', 'write-imm' (see"),
        (["--rounds"], "Option '--rounds' requires an argument. (see"),
    ],
)
def test_a_value_out_of_range_is_shown_with_its_bound(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["probe", "bandwidth", "h:1", *arguments]) == 64
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and said in err, err
    assert "Input should be" not in err and "Value error" not in err
