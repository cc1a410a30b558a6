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
_HOST = "VLLM_NIXL_SIDE_CHANNEL_HOST"
_EVERY_ADDRESS = ("", "*", "0.0.0.0", "::")  # noqa: S104  (compared with, not bound to)
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
        why
        for (one, first), (other, second) in combinations(ports, 2)
        if first[0] <= second[-1] and second[0] <= first[-1] and (why := _hidden(one, other))
    ]
    if unknown:
        return NotObservable(f"whether two processes that take one port share a network: {unknown[0]}")
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
    """Return whether two processes share their ports: where their networks are hidden, those outside containers do."""
    return not _known_apart(one, other) and not _hidden(one, other)


def _hidden(one: EngineSetup, other: EngineSetup) -> str:
    """Return why it cannot be told whether two processes share a network, or nothing.

    Containers have networks of their own, or the host's (hostNetwork, as RDMA often wants it).
    """
    if _known_apart(one, other):
        return ""
    networks = [setup.process.network for setup in (one, other)]
    hidden = [network.missing for network in networks if isinstance(network, Missing)]
    groups = [setup.process.cgroup for setup in (one, other)]
    for group in groups:
        if hidden and isinstance(group, Missing):
            return group.missing
    contained = any(word in str(group) for group in groups for word in ("kubepods", "docker", "libpod"))
    return hidden[0] if hidden and contained and groups[0] != groups[1] else ""


def _known_apart(one: EngineSetup, other: EngineSetup) -> bool:
    """Return whether two processes have networks of their own, or listen on two addresses of one."""
    networks = {one.process.network, other.process.network}
    if len(networks) > 1 and not any(isinstance(network, Missing) for network in networks):
        return True
    hosts = {_text(setup.variable(_HOST)) for setup in (one, other)}
    return len(hosts) > 1 and not hosts.intersection(_EVERY_ADDRESS)


def _text(value: str | Missing | None) -> str:
    return value if isinstance(value, str) else ""


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
