"""Runs `kvdiag agent` and `kvdiag probe` in the lab's machines, and looks for what they left behind."""

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.lab.machine import Machine
from tests.lab.process import Process, Result
from tests.lab.topology import End

KVDIAG = str(Path(sys.executable).with_name("kvdiag"))
TOKEN = "an-open-secret-of-the-lab"
ENVIRONMENT = {"KVDIAG_TOKEN": TOKEN}
PORT = 18580
PROBE_LIMIT_S = 120.0
_SUMMARY = (
    "import json; from kvdiag.sources.rdma_netlink import read_summaries; "
    "print(json.dumps({s.device: {k: s.counts[k] for k in ('qp', 'mr', 'cq', 'pd')} for s in read_summaries()}))"
)


@contextmanager
def agent(end: End, extra: str = "--idle 10", wrap: Any = str) -> Iterator[Process]:
    """Run an agent at one end of the wire; `wrap` may change its command."""
    command = f"exec {KVDIAG} agent --listen {end.address}:{PORT} --device {end.device} {extra}"
    process = end.machine.spawn(wrap(command), environment=ENVIRONMENT)
    process.wait_for("^kvdiag agent listens on", 60)
    try:
        yield process
    finally:
        process.kill()


def probe(near: End, far: End, arguments: str, token: str = TOKEN) -> Result:
    """Run a probe from one end to the agent at the other, to its end."""
    return near.machine.run(command(near, far, arguments), PROBE_LIMIT_S, environment={"KVDIAG_TOKEN": token})


def command(near: End, far: End, arguments: str) -> str:
    """Return a probe's command line; `arguments` start with bandwidth or latency."""
    kind, _, rest = arguments.partition(" ")
    device = "" if "--transport tcp" in rest else f"--device {near.device}"
    return f"exec {KVDIAG} probe {kind} {far.address}:{PORT} {device} {rest}"


def document(result: Result) -> dict[str, Any]:
    """Return the JSON document that a successful probe printed."""
    assert result.rc == 0, result.stderr
    parsed: dict[str, Any] = json.loads(result.stdout)
    return parsed


def objects(machine: Machine) -> dict[str, dict[str, int]]:
    """Return the live queue pairs, registrations, completion queues and domains of each device, by RDMA netlink."""
    parsed: dict[str, dict[str, int]] = json.loads(machine.run([sys.executable, "-c", _SUMMARY], check=True).stdout)
    return parsed


def await_objects(machine: Machine, wanted: dict[str, dict[str, int]], timeout_s: float = 30.0) -> None:
    """Wait until a machine holds as many RDMA objects as it did before, or fail showing what is left."""
    deadline_s = time.monotonic() + timeout_s
    while (found := objects(machine)) != wanted:
        assert time.monotonic() < deadline_s, f"left behind in {machine.name}: {found}, before it was {wanted}"
        time.sleep(0.5)


def await_traffic(end: End, packets: int, timeout_s: float = 60.0) -> None:
    """Wait until a device has sent that many packets more."""
    start = end.counters()["sent_pkts"]
    deadline_s = time.monotonic() + timeout_s
    while end.counters()["sent_pkts"] < start + packets:
        assert time.monotonic() < deadline_s, f"{end.device} of {end.machine.name} sends nothing"
        time.sleep(0.1)


def one_line(result: Result, code: int) -> str:
    """Return the one line of standard error that a failed command ended in; nothing else may have been said."""
    lines = result.stderr.splitlines()
    assert result.rc == code, result
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("kvdiag: error: ")
    return lines[0]
