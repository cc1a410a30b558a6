"""GID004: RoCE ports here and at the peer have addresses of one family."""

from kvdiag.checks.base import Check, Failed, Hosts, NotApplicable, NotObservable, Outcome, Passed
from kvdiag.derive.rails import Rail, rails
from kvdiag.derive.rdma import joined
from kvdiag.model.finding import Evidence, Finding, Severity
from kvdiag.model.missing import Missing
from kvdiag.model.snapshot import Snapshot

CODE = "GID004"


def run(hosts: Hosts) -> Outcome:
    if not hosts.peers:
        return NotApplicable("no peer given: name one with --peer HOST:PORT")
    ours = rails(hosts.local)
    if isinstance(ours, Missing):
        return NotObservable(ours.missing)
    if not ours:
        return NotApplicable("no RoCE port with an address here")
    findings = []
    passed = []
    for peer in hosts.peers:
        theirs = rails(peer)
        if isinstance(theirs, Missing):
            return NotObservable(theirs.missing)
        if not theirs:
            continue
        common = _families(ours) & _families(theirs)
        if not common:
            findings.append(_finding(hosts.local, ours, peer, theirs))
        elif common == {6}:
            findings.append(_only_ipv6(hosts.local, ours, peer, theirs))
        else:
            passed.append(f"{peer.host}: IPv4")
    if findings:
        return Failed(tuple(findings))
    if not passed:
        return NotApplicable("no RoCE port with an address at a peer")
    return Passed(joined(passed))


def _families(found: tuple[Rail, ...]) -> set[int]:
    return {address.version for rail in found for address in rail.addresses}


def _shown(host: str, found: tuple[Rail, ...], threshold: str | None) -> Evidence:
    return Evidence(
        name=f"RoCE addresses of {host}",
        value=joined(str(address) for rail in found for address in rail.addresses),
        source=f"/sys/class/infiniband/*/ports/*/gids of {host}",
        threshold=threshold,
    )


def _finding(local: Snapshot, ours: tuple[Rail, ...], peer: Snapshot, theirs: tuple[Rail, ...]) -> Finding:
    here, there = (f"IPv{max(_families(found))}" for found in (ours, theirs))
    return Finding(
        code=CODE,
        severity=Severity.CRITICAL,
        subject=f"RoCE addresses with {peer.host}",
        summary=f"RoCE has only {here} addresses here, only {there} ones on {peer.host}: no queue pair can be made",
        evidence=(
            _shown(local.host, ours, f"an {there} address, as on {peer.host}"),
            _shown(peer.host, theirs, None),
        ),
        action=f"ip addr add {there}-ADDRESS/PREFIX dev {ours[0].interface}, in the network of {peer.host}'s",
        host=local.host,
        devices=tuple(rail.port.device for rail in ours),
    )


def _only_ipv6(local: Snapshot, ours: tuple[Rail, ...], peer: Snapshot, theirs: tuple[Rail, ...]) -> Finding:
    return Finding(
        code=CODE,
        severity=Severity.INFO,
        subject=f"RoCE addresses with {peer.host}",
        summary=f"RoCE with {peer.host} can use IPv6 only: engines that look for an IPv4-mapped GID find none",
        evidence=(_shown(local.host, ours, None), _shown(peer.host, theirs, None)),
        action=f"nothing, if the engine chooses its GID; else give it the index of {ours[0].addresses[0]} (show_gids)",
        host=local.host,
        devices=tuple(rail.port.device for rail in ours),
    )


CHECK = Check(code=CODE, title="RoCE addresses of both ends are of one family", run=run, explains=("NET001", "NET003"))
