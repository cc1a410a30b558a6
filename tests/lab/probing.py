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
from tests.lab.topology import End, Wire, with_memlock

KVDIAG = str(Path(sys.executable).with_name("kvdiag"))
TOKEN = "an-open-secret-of-the-lab"
ENVIRONMENT = {"KVDIAG_TOKEN": TOKEN}
PORT = 18580
PROBE_LIMIT_S = 120.0
_MUCH = 1 << 40
BENCH_PORT = 18590


class Bench:
    """An agent at the far end and a process at the near end that runs one probe after the other.

    Python starts in each once, not once a probe: that takes ten times as long as a probe does. Both are started when
    they are first needed, and again after a test killed them. Neither may exceed a memlock limit that a test sets.
    """

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self._agent: Process | None = None
        self._prober: Process | None = None
        self._answers = 0
        self.under_way = False

    def agent(self) -> Process:
        """Return the running agent; it serves two rails, both on the end's one device."""
        if self._agent is None:
            end = self.wire.b
            line = (
                f"exec {KVDIAG} agent --listen {end.address}:{BENCH_PORT} --device {end.device},{end.device} --idle 10"
            )
            self._agent = end.machine.spawn(with_memlock(line, _MUCH), environment=ENVIRONMENT)
            self._agent.wait_for("^kvdiag agent listens on", 120)
        return self._agent

    def start(self, arguments: str) -> None:
        """Start a probe; `arguments` start with bandwidth or latency, and may name another `--device`."""
        self.agent()
        if self._prober is None:
            line = f"exec {sys.executable} -m benchmarks.repeat_probe"
            self._prober = self.wire.a.machine.spawn(with_memlock(line, _MUCH), environment=ENVIRONMENT, stdin=True)
            self._answers = 0
        kind, _, rest = arguments.partition(" ")
        device = "" if "--transport tcp" in rest or "--device" in rest else f"--device {self.wire.a.device}"
        # A host that is busy with much else leaves an emulated processor little: only a failure may wait less long.
        limit = "" if "--timeout" in rest else "--timeout 60"
        self.under_way = True
        self._prober.write(f"{kind} {self.wire.b.address}:{BENCH_PORT} {device} {limit} {rest}\n".encode())

    def finish(self) -> Result:
        """Return how the probe ended."""
        assert self._prober is not None
        self._answers += 1
        self._prober.wait_for(rf"\A(?:.*\n){{{self._answers}}}", PROBE_LIMIT_S)
        self.under_way = False
        answer = json.loads(self._prober.stdout.splitlines()[self._answers - 1])
        return Result(answer["rc"], answer["stdout"], answer["stderr"])

    def run(self, arguments: str) -> Result:
        """Run a probe to its end."""
        self.start(arguments)
        return self.finish()

    @contextmanager
    def stopped_agent(self) -> Iterator[None]:
        """Stop the agent's process for a while, as a debugger or a full disk does."""
        machine = self.wire.b.machine
        machine.run("pkill -STOP -of 'python.*kvdiag agent'", check=True)
        try:
            yield
        finally:
            machine.run("pkill -CONT -of 'python.*kvdiag agent'", check=True)

    def kill_agent(self) -> None:
        """Kill the agent without warning."""
        if self._agent is not None:
            self._agent.kill()
            self._agent = None

    def kill_prober(self) -> None:
        """Kill the probe that runs, without warning."""
        if self._prober is not None:
            self._prober.kill()
            self._prober = None
            self.under_way = False

    @contextmanager
    def memlock(self, end: End, limit_bytes: int) -> Iterator[None]:
        """Bound what the agent (at b) or the prober (at a) may lock, for a while."""
        name = "kvdiag agent" if end is self.wire.b else "benchmarks.repeat_probe"
        line = f"prlimit --pid $(pgrep -of 'python.*{name}') --memlock="
        end.machine.run(f"{line}{limit_bytes}:{_MUCH}", check=True)
        try:
            yield
        finally:
            end.machine.run(f"{line}{_MUCH}:{_MUCH}", check=True)

    def close(self) -> None:
        """End both."""
        self.kill_prober()
        self.kill_agent()


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
    rows = json.loads(machine.run(["rdma", "-j", "resource", "show"], check=True).stdout)
    return {row["ifname"]: {kind: row[kind] for kind in ("qp", "mr", "cq", "pd")} for row in rows}


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
