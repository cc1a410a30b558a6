import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from kvdiag.errors import UnavailableError, UsageError
from kvdiag.model.probe import ProbeSettings
from kvdiag_probes import narrowing, session
from kvdiag_probes.control.address import Address
from kvdiag_probes.control.client import AgentClient
from kvdiag_probes.measure import Runner
from kvdiag_probes.narrowing import control_state
from kvdiag_probes.session import ProbeOptions, run_probe
from tests.probes.agents import TOKEN, serving


def options(**changes: Any) -> ProbeOptions:
    settings: dict[str, Any] = {
        "kind": "bandwidth",
        "operation": "write",
        "transport": "rdma",
        "sizes": (4096,),
        "queue_depth": 16,
        "iterations": 10,
        "duration_s": None,
        "warmup": 0,
    }
    return ProbeOptions(
        peer=Address("127.0.0.1", 1), credential=TOKEN, settings=ProbeSettings(**(settings | changes)), timeout_s=1
    )


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"transport": "tcp", "queue_pairs": 2}, "^--qps: only for --transport rdma; with tcp leave it out$"),
        ({"transport": "tcp", "queue_pairs": 2, "inline": 64}, "^--qps, --inline: only .* leave them out$"),
        ({"transport": "tcp", "batch": 16, "signal_every": 2}, "^--batch, --signal-every: only .* leave them out$"),
        ({"transport": "tcp", "peer_memory": "cuda"}, "^--peer-memory: only for --transport rdma"),
        ({"transport": "tcp", "operation": "write-imm"}, "^--op write-imm: only for --transport rdma"),
        ({"memory": "cuda", "bidirectional": True}, "^--bidirectional: polls on memory, which needs --memory host"),
        ({"transport": "tcp", "ping_pong": True}, "^--ping-pong: only for --transport rdma"),
        ({"operation": "read", "ping_pong": True}, "--ping-pong answers each WRITE with a WRITE"),
        ({"memory": "cuda", "ping_pong": True}, "^--ping-pong: polls on memory, which needs --memory host"),
        ({"operation": "read", "ordering_rounds": 3}, "--check-ordering writes flags"),
        ({"batch": 17}, "--batch 17 with --signal-every 17 could fill --queue-depth 16"),
        ({"batch": 8, "signal_every": 10}, "--batch 8 with --signal-every 10 could fill --queue-depth 16"),
    ],
)
def test_flags_that_do_not_go_together_are_refused_before_anything_is_connected(
    changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        run_probe(options(**changes))


def test_what_an_agent_has_no_memory_for_is_told_with_what_would_fit() -> None:
    with serving() as server:
        asked = options(transport="tcp", sizes=(64, 1 << 30), iterations=2)
        with pytest.raises(UsageError, match=r"2147483648 bytes, .* allows 1073741824: --queue-depth 1 fits, or start"):
            run_probe(replace(asked, peer=server.address))
        with pytest.raises(
            UsageError, match="allows 1073741824: give a smaller --size, or start the agent with a larg"
        ):
            run_probe(replace(asked, peer=server.address, settings=replace(asked.settings, sizes=((1 << 30) + 1,))))


@contextmanager
def deaf(listens: bool) -> Iterator[Address]:
    """Yield where nothing answers: in a stopped process the kernel still takes connections."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        if listens:
            listening.listen(8)
        yield Address("127.0.0.1", listening.getsockname()[1])


@pytest.mark.parametrize(("listens", "state"), [(True, "stuck"), (False, "refuses")])
def test_an_agent_that_is_stopped_is_told_apart_from_one_that_is_gone(
    monkeypatch: pytest.MonkeyPatch, listens: bool, state: str
) -> None:
    monkeypatch.setattr(narrowing, "CONTROL_TIMEOUT_S", 0.2)
    with deaf(listens) as peer:
        assert control_state(peer, lambda: AgentClient(peer, TOKEN, 0.2)) == state


def test_a_host_that_takes_no_connection_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    def time_out(*_: object, **__: object) -> socket.socket:
        raise TimeoutError

    with deaf(listens=True) as peer:
        monkeypatch.setattr(narrowing, "CONTROL_TIMEOUT_S", 0.2)
        monkeypatch.setattr(socket, "create_connection", time_out)
        assert control_state(peer, lambda: AgentClient(peer, TOKEN, 0.2)) == "silent"


def test_an_agent_that_stops_in_the_middle_of_a_run_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over TCP, whose data path says no more than that nothing came."""
    monkeypatch.setattr(narrowing, "CONTROL_TIMEOUT_S", 0.2)

    def stop(*_: object) -> None:
        raise UnavailableError("b:1: no answer within 1 s (--timeout)")

    with deaf(listens=True) as stopped, serving() as server:
        monkeypatch.setattr(Runner, "measure", stop)
        monkeypatch.setattr(session, "_second_client", lambda _: AgentClient(stopped, TOKEN, 0.2))
        wanted = replace(options(transport="tcp"), peer=server.address)
        with pytest.raises(UnavailableError, match="its host takes connections but the agent does not answer"):
            run_probe(wanted)
