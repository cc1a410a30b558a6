"""Every failure ends in one line with its cause, in bounded time, and leaves no RDMA object behind at either end."""

from collections.abc import Callable, Iterator

import pytest

from tests.lab import probing
from tests.lab.process import Result
from tests.lab.topology import Wire, with_memlock

pytestmark = pytest.mark.lab

_LONG = "bandwidth --size 64KiB --duration 100 --timeout 8"


@pytest.fixture
def wire(lab_pair: Wire) -> Iterator[Wire]:
    """Two machines without an agent; whatever a test does, each ends with the RDMA objects that it began with."""
    before = [probing.objects(end.machine) for end in lab_pair.ends]
    yield lab_pair
    for end, wanted in zip(lab_pair.ends, before, strict=True):
        probing.await_objects(end.machine, wanted)


def disturb(wire: Wire, disturbance: Callable[[], None]) -> Result:
    """Return how a long probe ends that is disturbed once its transfer is under way.

    The disturbance may hit a transfer, or the verification between two of them.
    """
    running = wire.a.machine.spawn(probing.command(wire.a, wire.b, _LONG), environment=probing.ENVIRONMENT)
    probing.await_traffic(wire.a, 500)
    disturbance()
    return running.wait(60)


@pytest.mark.parametrize("fault", ["wrong-rkey", "out-of-range"])
@pytest.mark.parametrize("operation", ["write", "read"])
def test_a_refused_access_names_key_and_range(wire: Wire, fault: str, operation: str) -> None:
    with probing.agent(wire.b):
        before = probing.objects(wire.b.machine)
        result = probing.probe(wire.a, wire.b, f"bandwidth --op {operation} --size 4KiB --inject {fault}")
        line = probing.one_line(result, 69)
        assert f"RDMA {operation.upper()} failed with REM_ACCESS_ERR (10)" in line
        assert "remote key is wrong" in line and "address range" in line
        assert probing.objects(wire.b.machine) == before


def test_a_killed_agent_is_told_apart_from_a_bad_path(wire: Wire) -> None:
    with probing.agent(wire.b) as agent:
        line = probing.one_line(disturb(wire, agent.kill), 69)
    assert "the agent is gone: its control port refuses connections" in line


def test_a_killed_probe_leaves_nothing_at_the_agent(wire: Wire) -> None:
    with probing.agent(wire.b, "--idle 3"):
        before = probing.objects(wire.b.machine)
        running = wire.a.machine.spawn(probing.command(wire.a, wire.b, _LONG), environment=probing.ENVIRONMENT)
        probing.await_traffic(wire.a, 500)
        assert probing.objects(wire.b.machine) != before
        running.kill()
        probing.await_objects(wire.b.machine, before)


def test_a_pulled_cable_names_the_local_port(wire: Wire) -> None:
    with probing.agent(wire.b, "--idle 3"):
        try:
            line = probing.one_line(disturb(wire, lambda: wire.set_link(False)), 69)
        finally:
            wire.set_link(True)
        assert f"the local port {wire.a.device}/1 is DOWN" in line


def test_some_loss_is_recovered_and_total_loss_is_named(wire: Wire) -> None:
    with probing.agent(wire.b, "--idle 3"):
        with wire.a.netem("loss 1%"):
            result = probing.probe(wire.a, wire.b, "bandwidth --size 64KiB --iterations 100 --format json")
        assert probing.document(result)["results"][0]["verified_bytes"] == 100 * 65536
        running = wire.a.machine.spawn(probing.command(wire.a, wire.b, _LONG), environment=probing.ENVIRONMENT)
        probing.await_traffic(wire.a, 500)
        with wire.a.netem("loss 100%"):
            lost = running.wait(60)
        line = probing.one_line(lost, 69)
    assert "RETRY_EXC_ERR (12)" in line or "no answer within" in line


def test_a_wrong_and_a_missing_token_are_refused(wire: Wire) -> None:
    with probing.agent(wire.b):
        wrong = probing.probe(wire.a, wire.b, "bandwidth --size 4KiB", token="a-guess")
        assert "the token is wrong or missing" in probing.one_line(wrong, 69)
    refused = probing.probe(wire.a, wire.b, "bandwidth --size 4KiB")
    assert "Connection refused" in probing.one_line(refused, 69)


def test_a_small_memlock_limit_is_named_with_the_bytes_needed(wire: Wire) -> None:
    arguments = "bandwidth --size 1MiB --queue-depth 4 --iterations 4"
    with probing.agent(wire.b):
        limited = with_memlock(probing.command(wire.a, wire.b, arguments), 65536)
        result = wire.a.machine.run(limited, probing.PROBE_LIMIT_S, environment=probing.ENVIRONMENT)
        line = probing.one_line(result, 3)
        assert "cannot register 4194304 bytes" in line and "memlock limit is 65536 bytes" in line
    with probing.agent(wire.b, wrap=lambda command: with_memlock(command, 65536)):
        line = probing.one_line(probing.probe(wire.a, wire.b, arguments), 3)
        assert "at the agent" in line and "memlock limit is 65536 bytes" in line
