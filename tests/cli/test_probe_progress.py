"""Progress is for terminals alone: a bar with the live rate, which nothing of the report runs into."""

import io
import os
import pty
import re
import time
from collections.abc import Iterator

import pytest
from rich.console import Console

from kvdiag.cli import main
from kvdiag.cli.probe import _progress

KV = ["--layers", "2", "--kv-heads", "1", "--head-size", "64", "--tokens", "16", "--rounds", "1", "--repeats", "1"]


pytestmark = pytest.mark.usefixtures("token")


@pytest.fixture(autouse=True)
def _every_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_progress, "_SHORTEST_S", 0.0)


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[io.FileIO]:
    """Let progress go to a terminal, and yield what reads its other side."""
    master, slave = pty.openpty()
    os.set_blocking(master, False)
    monkeypatch.setenv("TERM", "xterm")
    with os.fdopen(slave, "w") as stream, io.FileIO(master) as screen:
        monkeypatch.setattr(_progress, "stderr", lambda: Console(file=stream))
        yield screen


@pytest.mark.parametrize(
    "command",
    [
        ["bandwidth", "--size", "4KiB", "--iterations", "40", "--rounds", "2"],
        ["latency", "--size", "64", "--duration", "0.02"],
        ["compare", "--methods", "tcp-write,tcp-read", "--size", "4KiB", "--iterations", "8", "--rounds", "1"],
        ["cold", "--size", "4KiB", "--rounds", "2"],
        ["kv", *KV],
    ],
    ids=lambda command: str(command[0]),
)
def test_a_terminal_sees_a_bar_with_the_rate_and_no_rest_of_it(
    peer: str, command: list[str], terminal: io.FileIO, capsys: pytest.CaptureFixture[str]
) -> None:
    kind, *flags = command
    transport = [] if kind == "compare" else ["--transport", "tcp"]
    assert main(["probe", kind, peer, *transport, *flags]) == 0
    shown = b"".join(iter(lambda: terminal.read(1 << 16) or b"", b"")).decode()
    lines = shown.split("\r\x1b[K")
    assert any(re.search(r"\[#+\.*\] +\d+%  \d+\.\d{3} Gb/s, ", line) for line in lines), lines
    if kind == "bandwidth":
        assert any("round 1 of 2 " in line for line in lines) and any("round 2 of 2 " in line for line in lines), lines
    assert lines[-1] == "" and "[#" not in capsys.readouterr().out


def test_a_line_is_cut_at_the_width_and_what_comes_too_soon_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_progress, "_SHORTEST_S", 60.0)
    screen = io.StringIO()
    line = _progress.Line(Console(file=screen, force_terminal=True, width=20))
    line("\x1b]0;title\x07" + "x" * 100)
    line("too soon")
    line.clear()
    line.clear()
    assert screen.getvalue() == "\r\x1b[K" + (r"\x1b]0;title\x07" + "x" * 100)[:19] + "\r\x1b[K"


def test_elsewhere_a_long_probe_says_now_and_then_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 100.0
    monkeypatch.setattr(_progress, "QUIET_S", 10.0)
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    log = io.StringIO()
    line = _progress.Line(Console(file=log))
    for now_s in (100.0, 109.9, 110.5, 111.0, 170.0, 170.6, 200.0):
        line(f"[##] 10%  round 1 of 5 at {now_s}\x1b[K")
    line.clear()
    assert log.getvalue().splitlines() == [
        r"kvdiag: after 10 s: [##] 10%  round 1 of 5 at 110.5\x1b[K",
        r"kvdiag: after 71 s: [##] 10%  round 1 of 5 at 170.6\x1b[K",
    ]


def test_nothing_is_shown_elsewhere(peer: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["probe", "cold", peer, "--transport", "tcp", "--rounds", "1", "--size", "4KiB"]) == 0
    assert capsys.readouterr().err == ""
