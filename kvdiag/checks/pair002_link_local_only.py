"""PAIR002: both ends have RoCE v2 GIDs that are more than link-local."""

from collections.abc import Iterable

from kvdiag.checks.base import Check, Failed, Hosts, NotApplicable, Outcome, Passed
from kvdiag.derive.pairs import roce_ports, used_ports, v2_gids
from kvdiag.derive.rdma import attribute, joined
from kvdiag.model.finding import Evidence, Finding, Severity
from kvdiag.model.missing import present
from kvdiag.model.rdma import Port
from kvdiag.model.snapshot import Snapshot

CODE = "PAIR002"


def run(hosts: Hosts) -> Outcome:
    if not hosts.peers:
        return NotApplicable("no peer given: name one with --peer HOST:PORT")
    ours = roce_ports(hosts.local, present(used_ports(hosts.local)) or ())
    findings, fine = [], []
    for peer in hosts.peers:
        theirs = roce_ports(peer, present(used_ports(peer)) or ())
        if not ours or not theirs:
            continue
        poor = [(host, ports) for host, ports in ((hosts.local, ours), (peer, theirs)) if not _routable(ports)]
        if poor:
            findings.append(_finding(hosts.local, peer, poor))
        else:
            fine.append(peer.host)
    if findings:
        return Failed(tuple(findings))
    if not fine:
        return NotApplicable("no ACTIVE RoCE port with GIDs here and at a peer")
    return Passed(f"routable RoCE v2 GIDs here and at {joined(fine)}")


def _routable(ports: Iterable[Port]) -> bool:
    return any(v2_gids(port, link_local=False) for port in ports)


def _finding(local: Snapshot, peer: Snapshot, poor: list[tuple[Snapshot, tuple[Port, ...]]]) -> Finding:
    hosts = joined(host.host for host, _ in poor)
    none_at_all = any(not v2_gids(port, link_local=True) for _, ports in poor for port in ports)
    limits = (
        "a queue pair with it cannot be made"
        if none_at_all
        else "a queue pair with it works within one Ethernet segment, and not for software that wants an IP address"
    )
    return Finding(
        code=CODE,
        severity=Severity.CRITICAL if none_at_all else Severity.WARNING,
        subject=peer.host,
        summary=f"{hosts} has {'no RoCE v2 GID' if none_at_all else 'link-local RoCE v2 GIDs only'}: {limits}",
        evidence=tuple(
            Evidence(
                name=f"RoCE v2 GIDs of {host.host} {port.name}",
                value=joined(f"{gid.index}: {gid.gid}" for gid in v2_gids(port, link_local=True)) or "none",
                source=attribute(port, "gids"),
                threshold="one of an IP address",
            )
            for host, ports in poor
            for port in ports
        ),
        action=f"give the RDMA interface of {hosts} an IP address in a network of the other (kvdiag explain GID003)",
        host=local.host,
    )


CHECK = Check(
    code=CODE,
    title="RoCE GIDs of both ends stand for IP addresses",
    run=run,
    explains=("PAIR008",),
    explained_by=("GID003", "PAIR001"),
)
