"""PAIR001: both ends have ACTIVE ports of one link layer."""

from kvdiag.checks.base import Check, Failed, Hosts, NotApplicable, NotObservable, Outcome, Passed
from kvdiag.derive.pairs import used_ports
from kvdiag.derive.rdma import joined, unread
from kvdiag.model.finding import Evidence, Finding, Severity
from kvdiag.model.missing import Missing
from kvdiag.model.rdma import Port
from kvdiag.model.snapshot import Snapshot

CODE = "PAIR001"


def run(hosts: Hosts) -> Outcome:
    if not hosts.peers:
        return NotApplicable("no peer given: name one with --peer HOST:PORT")
    ours = used_ports(hosts.local)
    if isinstance(ours, Missing):
        return NotObservable(ours.missing)
    if not ours:
        return NotApplicable("no ACTIVE RDMA port here that would be used")
    findings, agreed, hidden = [], [], []
    for peer in hosts.peers:
        theirs = used_ports(peer)
        if isinstance(theirs, Missing):
            hidden.append(f"{peer.host}: {theirs.missing}")
        elif theirs and (unknown := unread(theirs, "state")) and all(port.state != "ACTIVE" for port in theirs):
            hidden.append(f"{peer.host}: {unknown.missing}")
        elif shared := sorted(_layers(ours) & _layers(theirs)):
            agreed.append(f"{joined(shared)} with {peer.host}")
        elif "" in _layers(ours) | _layers(theirs):
            hidden.append(f"a port of {hosts.local.host} or {peer.host} shows no link layer")
        else:
            findings.append(_finding(hosts.local, ours, peer, theirs))
    if findings:
        return Failed(tuple(findings))
    if hidden:
        return NotObservable(hidden[0])
    return Passed(joined(agreed))


def _layers(ports: tuple[Port, ...]) -> set[str]:
    """Return the link layers, "" for one that cannot be seen."""
    return {port.link_layer if isinstance(port.link_layer, str) else "" for port in ports}


def _finding(local: Snapshot, ours: tuple[Port, ...], peer: Snapshot, theirs: tuple[Port, ...]) -> Finding:
    here, there = joined(sorted(_layers(ours))), joined(sorted(_layers(theirs))) or "none"
    if theirs:
        summary = f"{local.host} speaks {here} only, {peer.host} {there} only: no RDMA connection is possible"
        action = "use ports of one link layer on both ends (UCX_NET_DEVICES), or a pair of hosts on one fabric"
    else:
        summary = f"{peer.host} has no ACTIVE RDMA port that would be used: transfers with it can only go over TCP"
        action = f"run kvdiag preflight on {peer.host}: it says why"
    return Finding(
        code=CODE,
        severity=Severity.CRITICAL,
        subject=peer.host,
        summary=summary,
        evidence=(_evidence(local, ours), _evidence(peer, theirs, threshold=here)),
        action=action,
        host=local.host,
    )


def _evidence(snapshot: Snapshot, ports: tuple[Port, ...], threshold: str | None = None) -> Evidence:
    return Evidence(
        name=f"ACTIVE ports of {snapshot.host}",
        value=joined(f"{port.name} {port.link_layer}" for port in ports) or "none",
        source="/sys/class/infiniband/*/ports/*/link_layer",
        threshold=threshold,
    )


CHECK = Check(code=CODE, title="both ends have RDMA ports of one link layer", run=run, explains=("PAIR008",))
