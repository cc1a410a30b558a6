"""`kvdiag preflight --peer` against a real agent."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest

from kvdiag.cli import main

pytest.importorskip("httpx")
pytest.importorskip("uvicorn")


@pytest.fixture
def agent() -> Iterator[str]:
    """Yield the address of an agent that demands the token `s3`."""
    with subprocess.Popen(
        [sys.executable, "-m", "kvdiag", "agent", "--listen", "127.0.0.1:0"],
        env={**os.environ, "KVDIAG_TOKEN": "s3"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        assert process.stdout is not None
        try:
            found = re.search(r"127\.0\.0\.1:\d+", process.stdout.readline())
            assert found is not None
            yield found[0]
        finally:
            process.terminate()
            process.wait(timeout=20)


@pytest.mark.component
def test_a_peer_is_asked_for_its_snapshot(
    agent: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KVDIAG_TOKEN", "s3")
    code = main(["preflight", "--peer", agent, "--format", "json"])
    document = json.loads(capsys.readouterr().out)
    assert code in (0, 1, 2, 3)
    assert document["peers"] == [document["host"]]
    (pair,) = [item for item in document["checks"] if item["code"] == "MTU001"]
    assert "no peer given" not in pair["detail"]
    status = {item["code"]: item["status"] for item in document["checks"]}
    assert status["PAIR007"] == "passed"
    assert status["PAIR008"] in ("not_observable", "passed", "failed")


@pytest.mark.component
def test_a_wrong_token_and_an_absent_agent_are_69(
    agent: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KVDIAG_TOKEN", "wrong")
    assert main(["preflight", "--peer", agent]) == 69
    assert main(["preflight", "--peer", "127.0.0.1:1"]) == 69
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 2
