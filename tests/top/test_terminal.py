"""The live view at a real terminal, of a real exporter that watches a host that is alive."""

import json
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import jsonschema
import pytest

from kvdiag.cli import main
from kvdiag.report.json import published_schema
from tests.exporters.replay import SLOW, alive
from tests.exporters.test_cli import FEW_S, exporter

pytestmark = [pytest.mark.component, pytest.mark.xdist_group("top-terminal")]
TOP = f"{sys.executable} -m kvdiag top"
BROKEN = "import kvdiag.top.poll as p; p.Poller.document = lambda _: 1 / 0; from kvdiag.cli import main; exit(main())"


def calm(config: str) -> str:
    """Return the configuration without attribution, whose finding may come at any time and changes the exit code."""
    return config.replace("attribution_interval_s = 1", "attribution_interval_s = 0")


class Terminal:
    """A terminal of tmux with a shell in it."""

    def __init__(self, folder: Path) -> None:
        self._socket = folder / "tmux"
        self("new-session", "-d", "-x", "110", "-y", "30", "env -u NO_COLOR PS1='ready> ' bash --norc --noprofile")
        self("set-option", "-g", "remain-on-exit", "on")
        self.until(lambda text: "ready>" in text)

    def __call__(self, *arguments: str) -> str:
        command = ["tmux", "-S", str(self._socket), "-f", "/dev/null", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=FEW_S, check=True)
        return done.stdout

    def keys(self, *keys: str) -> None:
        self("send-keys", *keys)

    def text(self) -> str:
        return self("capture-pane", "-p")

    def until(self, condition: Callable[[str], object]) -> str:
        """Return what is on the screen once it is as it should be."""
        deadline = time.monotonic() + FEW_S
        while not condition(text := self.text()):
            assert time.monotonic() < deadline, text
            time.sleep(0.05)
        return text

    def run(self, command: str) -> None:
        self.keys("-l", f"clear; {command}; echo ended with $?, $(stty -a | grep -cE ' icanon .* echo( |$)|[^-]echo ')")
        self.keys("Enter")

    def ended(self, code: int) -> None:
        """Check that the shell has its terminal back: lines, echo, the cursor, and the screen that was there."""
        self.until(lambda text: re.search(rf"ended with {code}, [1-9]", text))
        assert self("display-message", "-p", "#{alternate_on} #{cursor_flag}").split() == ["0", "1"]

    def child(self) -> int:
        """Return the process that runs in the shell."""
        shell = self("display-message", "-p", "#{pane_pid}").strip()
        return int(Path(f"/proc/{shell}/task/{shell}/children").read_text().split()[0])


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    if shutil.which("tmux") is None:
        pytest.skip("tmux is not installed (Debian package tmux)")
    found = Terminal(tmp_path)
    yield found
    found("kill-server")


def test_keys_resizing_troubles_and_every_way_out(tmp_path: Path, terminal: Terminal) -> None:
    with alive(tmp_path, step_s=0.25) as config, exporter(tmp_path, calm(config)) as (process, url):
        terminal.run(f"{TOP} {url} --interval 0.5")
        slowest = re.compile(rf"Pairs.*\n.*p99.*\n{SLOW[0]} +→ {SLOW[1]} +\d")
        text = terminal.until(lambda text: slowest.search(text) and "NICs" in text)
        assert text.startswith("kvdiag top  1 of 1 exporters answer")
        terminal.keys("4")
        terminal.until(lambda text: text.count("gpu-node-7 mlx5_") == 8 and "400 Gb/s" in text)
        terminal.keys("/", *"mlx5_3", "Enter")
        terminal.until(lambda text: text.count("gpu-node-7 mlx5_") == 1 and "filter “mlx5_3”" in text)
        terminal.keys("Escape", "s", "r")
        terminal.until(lambda text: re.search(r"mlx5_7.*\n.*mlx5_6", text) and "port↓" in text)
        terminal.keys("p")
        terminal.until(lambda text: "PAUSED" in text.splitlines()[0])
        terminal.keys("p", "?")
        terminal.until(lambda text: "kvdiag top: keys" in text and "PAUSED" not in text)
        terminal.keys("x", "2")
        terminal("resize-window", "-x", "40", "-y", "10")
        text = terminal.until(lambda text: "2/7 pairs" not in text and text.count("prefill-") >= 3)
        assert "p99" in text
        terminal("resize-window", "-x", "110", "-y", "30")
        process.kill()
        process.wait(FEW_S)
        terminal.until(lambda text: re.search(r"0 of 1 exporters answer[^$]*refused; data \d+ s old", text))
        assert "prefill-" in terminal.text()
        terminal.keys("q")
        terminal.ended(1)
        for how, code in ((signal.SIGTERM, 143), (signal.SIGINT, 130)):
            terminal.run(f"{TOP} {url}")
            terminal.until(lambda text: "0 of 1 exporters answer" in text and "refused" in text)
            if how is signal.SIGINT:
                terminal.keys("C-c")
            else:
                subprocess.run(["kill", f"-{how.value}", str(terminal.child())], check=True)
            terminal.ended(code)
        terminal.run(f"{sys.executable} -c '{BROKEN}' top {url}")
        terminal.ended(70)
        assert "internal error: ZeroDivisionError" in terminal.text()


def test_one_frame_for_scripts_and_dumb_terminals(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setenv("COLUMNS", "100")
    with alive(tmp_path, step_s=0.25) as config, exporter(tmp_path, calm(config)) as (_, url):
        assert main(["top", url, "--interval", "2", "--format", "json"]) == 1
        document = json.loads(capsys.readouterr().out)
        jsonschema.validate(document, published_schema("kvdiag.top-1"))
        assert len(document["ports"]) == 8
        assert all(0 < one["transmit_ratio"] < 1 for one in document["ports"])
        assert all(one["transfers"] is not None for one in document["pairs"])
        assert main(["top", url, "http://127.0.0.1:9", "--interval", "0.5", "--once"]) == 1
        text = capsys.readouterr().out
        assert "\x1b" not in text
        assert "1 of 2 exporters answer" in text
        assert "http://127.0.0.1:9  Connection refused; no data yet" in text
        assert max(len(line) for line in text.splitlines()) <= 100
        assert main(["top", "http://127.0.0.1:9", "--once"]) == 69
