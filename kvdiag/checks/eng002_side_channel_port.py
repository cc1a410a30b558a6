"""ENG002: no two vLLM processes of one host take the same NIXL side channel port."""

from itertools import combinations

from kvdiag.checks.base import Check, Failed, Hosts, NotApplicable, NotObservable, Outcome, Passed
from kvdiag.derive.engines import transferring
from kvdiag.derive.rdma import joined
from kvdiag.derive.setting import group_of, set_variable
from kvdiag.model.engine import EngineSetup
from kvdiag.model.finding import Evidence, Finding, Severity
from kvdiag.model.missing import Missing

CODE = "ENG002"
_VARIABLE = "VLLM_NIXL_SIDE_CHANNEL_PORT"
_DEFAULT = 5600
"""Of vllm/envs.py; each data parallel rank takes the next one (nixl/base_scheduler.py, 0.13 and later)."""


def run(hosts: Hosts) -> Outcome:
    found = transferring(hosts.local, "nixl")
    if isinstance(found, Missing):
        return NotObservable(found.missing)
    users = [item for item in found if item.process.engine in ("vllm", "dynamo")]
    if not users:
        return NotApplicable("no vLLM process with the NIXL connector in its command line")
    hidden = [item.variables for item in users if isinstance(item.variables, Missing)]
    ports = [(item, span) for item in users if (span := _ports(item)) is not None]
    clashes = [
        (one, other, shared)
        for (one, first), (other, second) in combinations(ports, 2)
        if _same_network(one, other) and (shared := range(max(first[0], second[0]), min(first[-1], second[-1]) + 1))
    ]
    if clashes:
        free = max(span[-1] for _, span in ports) + 1
        return Failed(tuple(_finding(one, other, shared, free, hosts.local.host) for one, other, shared in clashes))
    if hidden:
        return NotObservable(hidden[0].missing)
    unknown = [
        group
        for (one, first), (other, second) in combinations(ports, 2)
        if first[0] <= second[-1] and second[0] <= first[-1]
        for group in (one.process.cgroup, other.process.cgroup)
        if isinstance(group, Missing)
    ]
    if unknown:
        return NotObservable(f"whether two processes that take one port share a network: {unknown[0].missing}")
    if len(users) == 1:
        return NotApplicable("one vLLM process with the NIXL connector: no other that could take its port")
    return Passed(joined(f"{item.process.name}: {_named(span)}" for item, span in ports))


def _named(ports: range) -> str:
    return f"port {ports[0]}" if len(ports) == 1 else f"ports {ports[0]}-{ports[-1]}"


def _ports(setup: EngineSetup) -> range | None:
    """Return the ports that a process listens on, None where its settings cannot be seen or are no numbers."""
    value = setup.variable(_VARIABLE)
    ranks = setup.option("--data-parallel-size-local", "-dpl") or setup.option("--data-parallel-size", "-dp") or "1"
    if isinstance(value, Missing) or not (value or "0").isdecimal() or not ranks.isdecimal():
        return None
    first = int(value) if value else _DEFAULT
    return range(first, first + max(1, min(int(ranks), 1024)))


def _same_network(one: EngineSetup, other: EngineSetup) -> bool:
    """Return whether two processes may share their ports: those of two pods or containers do not as a rule."""
    first, second = one.process.cgroup, other.process.cgroup
    if isinstance(first, Missing) or isinstance(second, Missing):
        return False
    contained = any(word in group for group in (first, second) for word in ("kubepods", "docker", "libpod"))
    return first == second or not contained


def _finding(one: EngineSetup, other: EngineSetup, shared: range, free: int, host: str) -> Finding:
    return Finding(
        code=CODE,
        severity=Severity.WARNING,
        subject=f"{one.process.name} and {other.process.pid}",
        summary=(
            f"{one.process.name} and {other.process.name} both take NIXL side channel {_named(shared)}: the one that "
            "started last cannot answer handshakes"
        ),
        evidence=tuple(
            Evidence(
                name=f"{_VARIABLE} of {item.process.pid}",
                value=str(item.variable(_VARIABLE) or f"unset (default {_DEFAULT})"),
                source=f"/proc/{item.process.pid}/environ",
            )
            for item in (one, other)
        ),
        action=f"for process {other.process.pid}: {set_variable(group_of(other.process), _VARIABLE, free)}",
        host=host,
    )


CHECK = Check(code=CODE, title="each process has a NIXL side channel port of its own", run=run)
