"""The command line as a whole: help, version, exit codes, one line for each failure."""

import errno
import subprocess
import sys
from collections.abc import Callable

import pytest
import typer
from rich.text import Text

from kvdiag import __version__
from kvdiag.cli import _main as cli_main
from kvdiag.cli import main
from kvdiag.cli._output import stdout
from kvdiag.errors import InputError, KvdiagError, UnavailableError, UndeterminedError, UsageError
from kvdiag.model.exit_code import ExitCode

HEAVY = ("numpy", "pyverbs", "nixl_cu12", "prometheus_client", "httpx", "starlette", "uvicorn", "pyarrow", "pyroute2")


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == ExitCode.PASSED
    assert capsys.readouterr().out == f"kvdiag {__version__}\n"


def test_help_lists_every_command_and_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == ExitCode.PASSED
    out = capsys.readouterr().out
    assert "explain" in out
    for code in ExitCode:
        assert str(int(code)) in out


def test_every_command_has_help_with_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    app = typer.main.get_command(cli_main.build_app())
    commands = list(app.commands)  # type: ignore[attr-defined]
    assert "explain" in commands
    for command in commands:
        assert main([command, "--help"]) == ExitCode.PASSED
        out = capsys.readouterr().out
        assert "Example" in out or "COMMAND" in out, f"{command} --help shows no example"


def test_no_arguments_prints_the_help_and_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == ExitCode.USAGE
    assert "Usage: kvdiag" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [["nonsense"], ["explain"], ["explain", "--nonsense"], ["explain", "NONE999"]])
def test_usage_errors_are_one_line(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == ExitCode.USAGE
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("kvdiag: error: ")
    assert captured.err.count("\n") == 1


def _raising(error: BaseException) -> Callable[[], typer.Typer]:
    def build() -> typer.Typer:
        app = typer.Typer()
        app.callback(invoke_without_command=True)(lambda: None)

        @app.command()
        def fail() -> None:
            raise error

        return app

    return build


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (KvdiagError("x"), 70),
        (UsageError("x"), 64),
        (InputError("x"), 64),
        (UnavailableError("x"), 69),
        (UndeterminedError("x"), 3),
        (ZeroDivisionError("x"), 70),
        (KeyboardInterrupt(), 130),
    ],
)
def test_every_failure_is_one_line_and_its_exit_code(
    error: BaseException, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("KVDIAG_DEBUG", raising=False)
    monkeypatch.setattr(cli_main, "build_app", _raising(error))
    assert main(["fail"]) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert "Traceback" not in captured.err


def test_the_debug_variable_shows_where_and_changes_no_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KVDIAG_DEBUG", "1")
    monkeypatch.setattr(cli_main, "build_app", _raising(ZeroDivisionError("x")))
    assert main(["fail"]) == 70
    assert "Traceback" in capsys.readouterr().err


def test_help_imports_nothing_heavy() -> None:
    program = (
        "import sys\nfrom kvdiag.cli import main\ncode = main(['--help'])\n"
        f"loaded = [name for name in {HEAVY!r} if name in sys.modules]\n"
        "sys.stderr.write(f'{code} {loaded}')"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stderr == "0 []"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shell_completion_is_printed(shell: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "kvdiag"],
        capture_output=True, text=True, timeout=60, check=False,
        env={"PATH": "/usr/bin:/bin", "_KVDIAG_COMPLETE": f"source_{shell}"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "kvdiag" in done.stdout
    assert shell == "fish" or "_KVDIAG_COMPLETE" in done.stdout


def test_a_closed_pipe_is_no_error() -> None:
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", f"{sys.executable} -m kvdiag --help | head -0"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert "Traceback" not in done.stderr
    assert "BrokenPipe" not in done.stderr


def test_a_locale_without_the_characters_never_costs_the_output() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "kvdiag", "--help"],
        capture_output=True, timeout=60, check=False, env={"PATH": "/usr/bin:/bin", "PYTHONIOENCODING": "ascii"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert b"could not determine" in done.stdout


def test_what_was_read_cannot_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    stdout().print(Text("host \x1b[31mred\x1b]0;title\x07 \x9b31m end"))
    out = capsys.readouterr().out
    assert "\\x1b[31mred" in out
    assert not any(ord(character) < 0x20 and character != "\n" for character in out)
    assert "\x9b" not in out


def test_too_many_open_files_is_a_limit_and_no_defect(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli_main, "build_app", _raising(OSError(errno.EMFILE, "Too many open files")))
    assert main(["fail"]) == ExitCode.UNDETERMINED
    assert "Too many open files: at most " in capsys.readouterr().err
