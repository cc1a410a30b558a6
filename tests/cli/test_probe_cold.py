import contextlib
import json
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from jsonschema import validate

from kvdiag.cli import main
from kvdiag.report.json import published_schema
from kvdiag_probes import cold, verbs
from kvdiag_probes.budget import Budget
from kvdiag_probes.cold import ColdResult, summarise
from kvdiag_probes.control.address import Address
from kvdiag_probes.control.credential import Credential
from kvdiag_probes.control.messages import OpenAnswer
from kvdiag_probes.datapath import Transport
from tests.probes.test_stages import ADDRESS, CHOICE

pytestmark = pytest.mark.usefixtures("token")


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


def test_the_steady_state_is_held_against_a_minimum_and_every_transfer_is_paced(
    peer: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    spent: list[int] = []
    monkeypatch.setattr(Budget, "spend", lambda _, moved: spent.append(moved))
    common = ["probe", "cold", peer, "--transport", "tcp", "--size", "64KiB", "--rounds", "5", "--steady", "3"]
    assert main([*common, "--min-bandwidth", "1kb/s", "--budget", "1GB/s", "-f", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [(one["metric"], one["status"]) for one in document["judgements"]] == [("cold.steady.bandwidth", "met")]
    assert spent == [65536] * (6 * (1 + 2 * 3))
    assert main([*common, "--min-bandwidth", "1000Tb/s"]) == 2
    assert "MISSED: --min-bandwidth: cold.steady.bandwidth" in capsys.readouterr().out
    assert main([*common, "--min-bandwidth", "0.9xlink"]) == 3


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


class _Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_the_search_for_a_device_and_allocation_are_no_step_of_a_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine does both once, when it starts; at the agent they are inside the request that opens its end."""
    clock = _Clock()

    class Endpoint(contextlib.nullcontext[Any]):
        address, path_mtu, allocate_s, register_s = ADDRESS, 1024, 100.0, 2.0

        def __init__(self, *_: object) -> None:
            super().__init__(self)
            clock.now_s += 100 + 2 + 1

        def connect(self, _: object) -> None:
            clock.now_s += 4

    @contextlib.contextmanager
    def session(*_: object) -> Iterator[OpenAnswer]:
        clock.now_s += 1000 + 500 + 8 + 16
        yield OpenAnswer(
            session="s", allocate_s=500, register_s=8, setup_s=16, discover_s=1000, device="b", queue_pair=ADDRESS
        )

    monkeypatch.setattr(time, "perf_counter", clock)
    for owner, name, fake in (
        (verbs, "preload", lambda: None),
        (verbs, "Endpoint", Endpoint),
        (cold, "choose", lambda *_, **__: CHOICE),
        (cold, "agent_session", session),
        (cold, "RdmaKvPath", lambda *_: None),
    ):
        monkeypatch.setattr(owner, name, fake)
    options = cold.ColdOptions(
        peer=Address("b", 1),
        credential=Credential(token="t" * 20),
        transport=Transport.RDMA,
        size=4096,
        rounds=1,
        steady=1,
        timeout_s=1,
    )
    taken = cold._Stages()
    with cold._rdma(options, options.peer, SimpleNamespace(local_address=""), taken, "b"):  # type: ignore[arg-type]
        pass
    assert taken.seconds == {"open": 1, "register": 2, "peer": 16, "peer_register": 8, "connect": 4}
