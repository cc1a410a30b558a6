"""What fails in a block is told with what this end shows, whichever probe it is of."""

from types import SimpleNamespace
from typing import Any

import pytest

from kvdiag.errors import UnavailableError
from kvdiag.model.missing import Missing
from kvdiag_probes import narrowing
from kvdiag_probes.completion import CompletionError, completion_error
from kvdiag_probes.control.address import Address
from kvdiag_probes.control.credential import Credential
from tests.probes.test_stages import CHOICE

PEER, TOKEN = Address("127.0.0.1", 1), Credential(token="t" * 20)
BEFORE = Missing("a fake has no counters")


def endpoint(state: str) -> Any:
    return SimpleNamespace(choice=CHOICE, path_mtu=1024, states=lambda: [state])


@pytest.mark.parametrize(
    ("port", "control", "words"),
    [
        ("rdma0/1 is DOWN", "answers", "the local port rdma0/1 is DOWN; "),
        ("", "refuses", "the agent is gone: its control port refuses connections; "),
        ("", "answers", "(1) the path drops the packets"),
    ],
)
def test_retries_that_ran_out_are_told_with_port_queue_pair_and_agent(
    monkeypatch: pytest.MonkeyPatch, port: str, control: str, words: str
) -> None:
    monkeypatch.setattr(narrowing, "inactive_port", lambda *_: port)
    monkeypatch.setattr(narrowing, "control_state", lambda *_: control)
    with pytest.raises(CompletionError) as caught, narrowing.narrowing(PEER, TOKEN, endpoint("ERR"), BEFORE):
        raise completion_error("RDMA READ", str(PEER), 12, vendor=0x81)
    line = str(caught.value)
    assert line.startswith("127.0.0.1:1: RDMA READ failed with RETRY_EXC_ERR (12, vendor 0x81): ") and words in line
    assert "GID 0 ::1 (RoCE v2), path MTU 1024, 1 of 1 queue pairs in ERR" in line


def test_an_agent_that_does_not_answer_is_told_with_its_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(narrowing, "control_state", lambda *_: "stuck")
    with (
        pytest.raises(
            UnavailableError, match="no answer within 8 s; its host takes connections but the agent does not"
        ),
        narrowing.narrowing(PEER, TOKEN, None, BEFORE),
    ):
        raise UnavailableError(f"{PEER}: no answer within 8 s")
