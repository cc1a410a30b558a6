"""What becomes of a command whose outputs are full, closed or left by their reader, and of Ctrl-C."""

import contextlib
import errno
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvdiag.cli import main
from kvdiag.cli._files import write_parts, write_whole
from kvdiag.cli.preflight import PreflightFormat
from kvdiag.cli.probe._progress import progress
from kvdiag.cli.probe._stop import stoppable
from kvdiag.errors import StoppedError, UndeterminedError
from kvdiag.model.trace import Trace
from kvdiag.report.trace import MARK, encode
from kvdiag.sources import probe_history
from tests.probes.agents import serving
from tests.trees import HOSTS


def shell(line: str) -> subprocess.CompletedProcess[str]:
    command = line.replace("kvdiag", f"{sys.executable} -m kvdiag", 1)
    return subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.parametrize("arguments", ["explain --list", "--version"])
def test_a_full_output_is_no_defect(arguments: str) -> None:
    done = shell(f"kvdiag {arguments} >/dev/full")
    assert (done.returncode, done.stderr.count("\n")) == (3, 1)
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


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_first_signal_stops_a_measurement_and_the_second_ends_all(number: signal.Signals) -> None:
    met: list[int] = []
    # A shell's background job, as this may be, ignores it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with stoppable():
        for second in (number, signal.SIGINT):
            try:
                signal.raise_signal(second)
            except (StoppedError, KeyboardInterrupt) as error:
                met.append(error.exit_code if isinstance(error, StoppedError) else 0)
    assert met == [128 + number, 0]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_signal_that_something_swallowed_is_heeded_at_the_next_step() -> None:
    """As an import does that goes on whatever it met."""
    with stoppable():
        line = progress()
        line("working")
        with contextlib.suppress(Exception):
            signal.raise_signal(signal.SIGTERM)
        with pytest.raises(StoppedError, match="ended by SIGTERM"):
            line("working")
    with stoppable():
        line("the next probe")


def test_a_signal_that_is_ignored_stays_so() -> None:
    """As nohup asks for."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stoppable():
            signal.raise_signal(signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize(
    ("number", "code", "said"), [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "ended by SIGTERM")]
)
def test_a_signal_keeps_the_sizes_that_were_measured(
    tmp_path: Path, number: signal.Signals, code: int, said: str
) -> None:
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
            process.send_signal(number)
            out, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (code, f"kvdiag: error: {said}\n")
    (document,) = map(json.loads, kept.read_text().splitlines())
    assert document["failure"] == said and [row["size_bytes"] for row in document["results"]][:1] == [64]
    assert "INCOMPLETE" in out


@pytest.mark.parametrize("full", ["--samples", "--out"])
def test_an_output_that_takes_nothing_costs_no_other_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, full: str
) -> None:
    monkeypatch.setenv("KVDIAG_TOKEN", "let-me-in")
    files = {"--samples": tmp_path / "samples.csv", "--out": tmp_path / "runs.jsonl"} | {full: Path("/dev/full")}
    flags = [part for flag, path in files.items() for part in (flag, str(path))]
    with serving() as server:
        arguments = ["--transport", "tcp", "--size", "64", "--iterations", "50", "--format", "json", *flags]
        code = main(["probe", "bandwidth", str(server.address), *arguments])
    out, err = capsys.readouterr()
    assert code != 0 and f"{full} /dev/full: No space left on device" in err
    assert json.loads(out)["results"][0]["iterations"] == 50
    (other,) = (path for path in files.values() if path != Path("/dev/full"))
    assert len(other.read_text().splitlines()) == (51 if full == "--out" else 1)


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


def written(name: str, tmp_path: Path) -> tuple[list[list[str]], Path]:
    """Return ways to call a command that writes a file of its own kind, and the file."""
    path, tree = tmp_path / "written", ["--root", str(HOSTS / "no-rdma")]
    if name == "snapshot":
        return [["snapshot", *tree, "-o", str(path)]], path
    formats = [["preflight", *tree, "--format", one, "--out", str(path)] for one in PreflightFormat]
    return formats, path


@pytest.mark.parametrize("name", ["snapshot", "preflight"])
def test_an_output_replaces_what_it_wrote_before_and_nothing_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    ways, path = written(name, tmp_path)
    path.write_text("mine")
    assert main(ways[0]) == 64
    assert "exists, and is not what kvdiag writes there; name another file\n" in capsys.readouterr().err
    assert path.read_text() == "mine"
    path.write_text("")
    earlier = ""
    for way in (*ways, *ways):
        assert main(way) != 64, capsys.readouterr().err
        assert path.read_text() != earlier
        earlier = path.read_text()


@pytest.mark.parametrize(
    "arguments",
    [["snapshot", "--key-file", "{file}", "-o", "{file}"], ["preflight", "--snapshot", "{file}", "--out", "{file}"]],
)
def test_no_output_replaces_an_input_of_its_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    path = tmp_path / "one"
    path.touch()
    assert main([one.format(file=path) for one in arguments]) == 64
    assert f"{path}: that is the input {path}, or lies in it" in capsys.readouterr().err


def test_samples_replace_samples_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "samples.csv"
    line = ["probe", "bandwidth", "127.0.0.1:1", "--transport", "tcp", "--samples", str(path)]
    path.write_text("mine")
    assert main(line) == 64
    assert f"--samples {path}: exists, and is not what kvdiag writes" in capsys.readouterr().err
    path.write_text("size_bytes,seconds\n64,0.1\n")
    assert main(line) == 69


def test_a_write_that_fails_leaves_what_was_there_and_nothing_new(tmp_path: Path) -> None:
    def parts() -> Iterator[str]:
        yield "half"
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    path = tmp_path / "file"
    for before in (None, "earlier"):
        if before is not None:
            path.write_text(before)
        with pytest.raises(UndeterminedError, match=f"--out {path}: No space left on device"):
            write_parts(path, parts(), "--out")
        assert [one.read_text() for one in tmp_path.iterdir()] == ([] if before is None else [before])
    with pytest.raises(UndeterminedError, match="--out /dev/full: No space left"):
        write_whole(Path("/dev/full"), "text", "--out")


def test_a_link_is_followed_and_stays(tmp_path: Path) -> None:
    place, link = tmp_path / "run-1.json", tmp_path / "latest.json"
    link.symlink_to(place)
    for text in ("first", "second"):
        write_whole(link, text, "--out")
        assert (place.read_text(), link.is_symlink()) == (text, True)


def test_a_run_that_cannot_be_appended_leaves_no_part_of_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "runs.jsonl"
    probe_history.append(path, '{"schema": "kvdiag.probe/1"}')
    before = path.read_bytes()
    write = os.write

    def full(descriptor: int, data: bytes) -> int:
        if len(data) > 8:
            return write(descriptor, data[:8])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(UndeterminedError, match=r"--out .*: No space left"):
        probe_history.append(path, '{"schema": "kvdiag.probe/1"}')
    assert path.read_bytes() == before


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


def test_two_outputs_never_share_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(tmp_path / "x")
    assert main(["probe", "bandwidth", "127.0.0.1:1", "--transport", "tcp", "--out", path, "--samples", path]) == 64
    assert f"--samples {path}: that is --out too; give a file of its own" in capsys.readouterr().err
