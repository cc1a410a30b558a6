import json
from collections.abc import Iterator

import pytest
from jsonschema import validate

from kvdiag.cli import main
from kvdiag.report.json import published_schema
from kvdiag_probes.cold import ColdResult, summarise
from tests.probes.agents import serving


@pytest.fixture(scope="module")
def peer() -> Iterator[str]:
    with serving() as server:
        yield str(server.address)


@pytest.fixture(autouse=True)
def _token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVDIAG_TOKEN", "let-me-in")


def test_the_steps_add_up_to_the_total(peer: str, capsys: pytest.CaptureFixture[str]) -> None:
    common = ["probe", "cold", peer, "--transport", "tcp", "--size", "64KiB", "--rounds", "5"]
    assert main([*common, "--max-cold-ms", "60000", "-f", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    validate(document, published_schema("kvdiag.probe-cold-1"))
    names = [stage["name"] for stage in document["stages"]]
    assert names == ["resolve", "handshake", "peer", "connect", "first_write"]
    assert document["total_first_s"] == pytest.approx(sum(stage["first_s"] for stage in document["stages"]))
    assert document["slowdown"]["low"] > 1
    assert main([*common, "--max-cold-ms", "0.0001"]) == 2
    assert "MISSED: --max-cold-ms: cold.total" in capsys.readouterr().out


def test_a_step_s_time_stays_in_that_step() -> None:
    slow = {"resolve": 0.25, "handshake": 0.125, "connect": 1.0, "first_write": 0.5}
    result = ColdResult(ends=None, stages=[slow] * 6, steady_s=[9.0, *[0.5] * 5])  # type: ignore[arg-type]
    stages, first_s, total, steady, slowdown = summarise(result)
    assert {stage.name: (stage.first_s, stage.again.value) for stage in stages} == {
        name: (value, value) for name, value in slow.items()
    }
    assert (first_s, total.value, steady.value, slowdown.value) == (1.875, 1.875, 0.5, 3.75)
    assert total.samples == 5


def test_an_agent_that_is_not_there_and_a_name_that_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["probe", "cold", "127.0.0.1:1", "--transport", "tcp"]) == 69
    assert "127.0.0.1:1: Connection refused" in capsys.readouterr().err
    assert main(["probe", "cold", "no-such-host.invalid:18580", "--transport", "tcp"]) == 69
    assert "is the name right?" in capsys.readouterr().err
