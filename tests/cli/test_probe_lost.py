"""An agent that is killed in mid-run: one line says so, and what was measured before is kept and marked."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from jsonschema import validate

from kvdiag.cli import main
from kvdiag.report.json import published_schema
from kvdiag_probes.budget import Budget
from kvdiag_probes.control.client import AgentClient
from kvdiag_probes.control.messages import VerifyAnswer, VerifyRequest

pytestmark = pytest.mark.component
KVDIAG = Path(sys.executable).with_name("kvdiag")
SMALL_KV = ("--layers", "2", "--kv-heads", "1", "--head-size", "64", "--tokens", "16", "--repeats", "1")


class Agent:
    """A real agent on loopback, in a process of its own."""

    def __init__(self) -> None:
        command = [str(KVDIAG), "agent", "--listen", "127.0.0.1:0", "-f", "json"]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        text = ""
        while "}" not in text:
            text += self._process.stdout.readline()
        self.address = json.loads(text)["listen"]

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(10)

    def close(self) -> None:
        self.kill()
        assert self._process.stdout is not None
        self._process.stdout.close()


@pytest.fixture
def agent() -> Iterator[Agent]:
    made = Agent()
    yield made
    made.close()


def lost(err: str, address: str) -> None:
    assert err.count("\n") == 1 and err.count("lost the agent") == 1, err
    assert re.match(rf"kvdiag: error: lost the agent {re.escape(address)} after \d+\.\d s of this connection: ", err), (
        err
    )
    assert err.count("start it") == 1, err


def test_a_bandwidth_probe_in_mid_transfer(
    agent: Agent, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    verify, asked = AgentClient.verify, iter(range(5))

    def verify_then_kill(client: AgentClient, session: str, request: VerifyRequest) -> VerifyAnswer:
        answer = verify(client, session, request)
        if next(asked) == 4:
            agent.kill()
        return answer

    monkeypatch.setattr(AgentClient, "verify", verify_then_kill)
    arguments = ["--transport", "tcp", "--size", "64KiB", "--duration", "60", "--timeout", "5"]
    assert main(["probe", "bandwidth", agent.address, *arguments]) == 69
    lost(capsys.readouterr().err, agent.address)


def test_a_kv_probe_keeps_its_rounds_and_no_baseline_counts_them(
    agent: Agent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    spent: list[int] = []

    def spend(_: Budget, moved_bytes: int, keep: object = None) -> None:
        spent.append(moved_bytes)
        if len(spent) == 12:  # one round that is not counted, one that is, half of the next: eight transfers each
            agent.kill()

    monkeypatch.setattr(Budget, "spend", spend)
    out = tmp_path / "history.jsonl"
    command = ["probe", "kv", agent.address, "--transport", "tcp", *SMALL_KV, "--rounds", "9", "--out", str(out)]
    assert main([*command, "-f", "json"]) == 69
    said = capsys.readouterr()
    lost(said.err, agent.address)
    document = json.loads(said.out)
    validate(document, published_schema("kvdiag.probe-kv-1"))
    assert "kvdiag: error: " + document["failure"] == said.err.rstrip()
    assert document["proof"]["status"] == "not_observable"
    assert {row["total"]["samples"] for row in document["rows"]} == {1}
    assert len(document["rows"]) == 4 and json.loads(out.read_text())["failure"] == document["failure"]
