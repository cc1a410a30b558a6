"""NET003: from every RoCE port here a route leads to a RoCE address of the peer."""

from kvdiag.checks.base import Check, Failed, Hosts, NotApplicable, NotObservable, Outcome, Passed
from kvdiag.derive.rails import Reach, connected, reach
from kvdiag.derive.rdma import joined
from kvdiag.model.finding import Evidence, Finding, Severity
from kvdiag.model.missing import Missing
from kvdiag.model.routing import Routing
from kvdiag.model.snapshot import Snapshot

CODE = "NET003"


def run(hosts: Hosts) -> Outcome:
    if not hosts.peers:
        return NotApplicable("no peer given: name one with --peer HOST:PORT")
    findings = []
    hidden: list[Missing] = []
    compared = 0
    for peer in hosts.peers:
        found = reach(hosts.local, peer)
        if isinstance(found, Missing):
            hidden.append(found)
            continue
        # Where the two ends have no address family in common, GID004 says so.
        judged = [item for item in found if _same_family(item)]
        lost = [item for item in judged if not any(ok for _, ok in item.peers)]
        compared += len(judged)
        findings += [_finding(hosts.local, peer, item, every=len(lost) == len(judged)) for item in lost]
    if findings:
        return Failed(tuple(findings))
    if hidden:
        return NotObservable(hidden[0].missing)
    if not compared:
        return NotApplicable("no RoCE port with an address on both this host and a peer")
    return Passed(f"a route leads from {compared} RoCE port(s) here to the peers' addresses")


def _same_family(item: Reach) -> bool:
    versions = {address.version for address in item.rail.addresses}
    return any(address.version in versions for far, _ in item.peers for address in far.addresses)


def _finding(local: Snapshot, peer: Snapshot, item: Reach, *, every: bool) -> Finding:
    rail = item.rail
    routing = local.part(Routing)
    networks = () if isinstance(routing, Missing) else connected(routing, rail.interface)
    far = [str(address) for other, _ in item.peers for address in other.addresses]
    version = 4 if any(address.version == 4 for address in rail.addresses) else 6
    target = next((text for text in far if (":" in text) == (version == 6)), far[0])
    return Finding(
        code=CODE,
        severity=Severity.WARNING if every else Severity.INFO,
        subject=rail.port.name,
        summary=(
            f"no route leads from {rail.port.name} ({rail.interface}) to a RoCE address of {peer.host}: consistent "
            "with queue pairs that time out at RTR or retries that run out"
        ),
        evidence=(
            Evidence(
                name=f"networks of {rail.interface}",
                value=joined(networks) or "none",
                source="/proc/net/route",
                threshold=f"one that holds, or a route to, {joined(far, 4)}",
            ),
            Evidence(name=f"RoCE addresses of {peer.host}", value=joined(far), source=f"GIDs of {peer.host}"),
        ),
        action=f"ip route add {target} via GATEWAY dev {rail.interface}, GATEWAY being the router of its network",
        host=local.host,
        devices=(rail.port.device,),
    )


CHECK = Check(code=CODE, title="routes lead to the peer's RoCE addresses", run=run, explained_by=("GID003", "GID004"))
