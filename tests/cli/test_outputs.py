"""What becomes of a command whose outputs are full, closed or left by their reader, and of Ctrl-C."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kvdiag.cli import main
from kvdiag.cli.probe._stop import stoppable
from kvdiag.errors import StoppedError
from kvdiag.model.trace import Trace
from kvdiag.report.trace import MARK, encode
from tests.probes.agents import serving


def shell(line: str) -> subprocess.CompletedProcess[str]:
    command = line.replace("kvdiag", f"{sys.executable} -m kvdiag", 1)
    return subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.parametrize("arguments", ["explain --list", "--version"])
def test_a_full_output_is_no_defect(arguments: str) -> None:
    done = shell(f"kvdiag {arguments} >/dev/full")
    assert (done.returncode, done.stderr.count("\n")) == (64, 1)
    assert "standard output: No space left on device" in done.stderr


def test_a_closed_output_changes_no_exit_code() -> None:
    assert shell("kvdiag explain GID001 >&-").returncode == 0
    assert shell("kvdiag explain GID999 2>&-").returncode == 64


def test_a_reader_that_goes_away_changes_no_exit_code() -> None:
    """1 would read as warnings."""
    done = shell("kvdiag preflight | true; echo ${PIPESTATUS[0]}")
    alone = shell("kvdiag preflight")
    assert (int(done.stdout), done.stderr) == (alone.returncode, alone.stderr)


def test_ctrl_c_while_python_loads_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(arguments: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("kvdiag.cli._main.main", interrupt)
    assert main([]) == 130
    assert capsys.readouterr().err == "kvdiag: error: interrupted\n"


def test_the_first_ctrl_c_stops_a_measurement_and_the_second_ends_all() -> None:
    met: list[type[BaseException]] = []
    with stoppable():
        for _ in range(2):
            try:
                signal.raise_signal(signal.SIGINT)
            except (StoppedError, KeyboardInterrupt) as error:
                met.append(type(error))
    assert met == [StoppedError, KeyboardInterrupt]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_ctrl_c_keeps_the_sizes_that_were_measured(tmp_path: Path) -> None:
    kept = tmp_path / "runs.jsonl"
    arguments = ["--transport", "tcp", "--size", "64,4096", "--duration", "0.2", "--rounds", "1000"]
    with serving() as server:
        command = [sys.executable, "-m", "kvdiag", "probe", "bandwidth", str(server.address), *arguments]
        with subprocess.Popen(
            [*command, "--out", str(kept)],
            env=os.environ | {"KVDIAG_TOKEN": "let-me-in"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            time.sleep(4)
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (130, "kvdiag: error: interrupted\n")
    (document,) = map(json.loads, kept.read_text().splitlines())
    assert document["failure"] == "interrupted" and [row["size_bytes"] for row in document["results"]][:1] == [64]
    assert "INCOMPLETE" in out


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('{"traceEvents":[]}', "holds no document of a probe"),
        ('{"schema": "kvdiag.bundle/1"}', "holds no document of a probe"),
        (None, "Is a directory"),
        ("", None),
        ('{"schema":"kvdiag.probe/1"}\n', None),
        ('{"torn\n{"schema":"kvdiag.probe-kv/1"}\n', None),
    ],
)
def test_only_a_file_of_probes_is_appended_to(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str | None, said: str | None
) -> None:
    path = tmp_path / "runs.jsonl"
    if content is None:
        path.mkdir()
    else:
        path.write_text(content)
    code = main(["probe", "bandwidth", "127.0.0.1:1", "--transport", "tcp", "--out", str(path)])
    err = capsys.readouterr().err
    assert code == (69 if said is None else 64)
    assert said is None or (f"--out {path}: {said}" in err)
    assert content is None or path.read_text() == content


def test_a_trace_never_replaces_an_input_or_another_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    meta = tmp_path / "meta.json"
    meta.write_text('{"schema": "kvdiag.bundle/1"}')
    assert main(["diagnose", str(tmp_path), "--trace", str(meta)]) == 64
    assert f"--trace {meta}: that is the input {tmp_path}, or lies in it" in capsys.readouterr().err
    other = tmp_path / "notes"
    other.write_text("mine")
    assert main(["probe", "bandwidth", "127.0.0.1:1", "--transport", "tcp", "--trace", str(other)]) == 64
    assert "exists, and is not what kvdiag writes there" in capsys.readouterr().err
    assert (meta.read_text(), other.read_text()) == ('{"schema": "kvdiag.bundle/1"}', "mine")


def test_every_trace_begins_with_its_mark() -> None:
    assert encode(Trace(slices=(), instants=(), counters=(), about={})).encode().startswith(MARK)


def test_a_folder_is_no_snapshot(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["preflight", "--snapshot", str(tmp_path)]) == 64
    assert f"--snapshot {tmp_path}: not a regular file" in capsys.readouterr().err
    assert main(["preflight", "--log", str(tmp_path)]) == 64
    assert f"--log {tmp_path}: not a regular file" in capsys.readouterr().err


def test_a_configuration_of_the_environment_is_named_by_its_variable(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KVDIAG_PREFLIGHT_CONFIG", "/nope.toml")
    assert main(["preflight"]) == 64
    assert "KVDIAG_PREFLIGHT_CONFIG /nope.toml: No such file" in capsys.readouterr().err
    assert main(["preflight", "--config", "/none.toml"]) == 64
    assert "--config /none.toml: No such file" in capsys.readouterr().err
