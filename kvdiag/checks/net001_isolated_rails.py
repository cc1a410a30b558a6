"""NET001: every RoCE port that an engine may pair with a peer's port can reach it."""

from kvdiag.checks.base import Check, Failed, Hosts, NotApplicable, NotObservable, Outcome, Passed
from kvdiag.derive.engines import transferring
from kvdiag.derive.rails import Reach, reach
from kvdiag.derive.rdma import joined
from kvdiag.derive.setting import group_here, set_variable
from kvdiag.model.finding import Evidence, Finding, Severity
from kvdiag.model.missing import Missing, present
from kvdiag.model.rdma import Port
from kvdiag.model.snapshot import Snapshot

CODE = "NET001"


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
        elif len(found) > 1 and all(len(item.peers) > 1 for item in found):
            compared += 1
            if _isolated(found):
                findings.append(_finding(hosts.local, peer, found))
    if findings:
        return Failed(tuple(findings))
    if hidden:
        return NotObservable(hidden[0].missing)
    if not compared:
        return NotApplicable("no two RoCE ports with an address on both this host and a peer")
    return Passed(f"every RoCE port here has a route to every port of {compared} peer(s)")


def _isolated(found: tuple[Reach, ...]) -> bool:
    """Return whether each port reaches some ports there and none reaches all: rails, not a missing route."""
    return all(any(ok for _, ok in item.peers) and not all(ok for _, ok in item.peers) for item in found)


def _mooncake(snapshot: Snapshot) -> bool:
    """Return whether Mooncake moves the blocks, without the option that keeps it on the peer's like-named card."""
    return any(
        str(engine.variable("MC_ENABLE_DEST_DEVICE_AFFINITY") or "") not in ("1", "true")
        for engine in present(transferring(snapshot, "mooncake")) or ()
    )


def _finding(local: Snapshot, peer: Snapshot, found: tuple[Reach, ...]) -> Finding:
    pairs = [(item.rail.port.name, far.port.name, ok) for item in found for far, ok in item.peers]
    good = [f"{here}-{there}" for here, there, ok in pairs if ok]
    bad = [f"{here}-{there}" for here, there, ok in pairs if not ok]
    mooncake = _mooncake(local) or _mooncake(peer)
    first = found[0].rail.port
    return Finding(
        code=CODE,
        severity=Severity.WARNING if mooncake else Severity.INFO,
        subject=f"rails to {peer.host}",
        summary=(
            f"the RoCE ports here are rails of their own: {len(bad)} of {len(pairs)} port pairs with {peer.host} have "
            "no route" + (", and Mooncake pairs any port with any" if mooncake else "")
        ),
        evidence=(
            Evidence(name="pairs with a route", value=joined(good, 16), source="/proc/net/route, GIDs of both hosts"),
            Evidence(name="pairs without", value=joined(bad, 16), source="/proc/net/route, GIDs of both hosts"),
        ),
        action=_action(local, first, mooncake),
        host=local.host,
    )


def _action(local: Snapshot, first: Port, mooncake: bool) -> str:
    group = group_here(local)
    if mooncake:
        return (
            f"on both ends: {set_variable(group, 'MC_ENABLE_DEST_DEVICE_AFFINITY', 1)}; or give each rank one device "
            f"(--disaggregation-ib-device {first.device}); or route between the rails"
        )
    return (
        "consistent with a rail-optimised network; keep engines on like rails: "
        f"{set_variable(group, 'UCX_IB_ROCE_LOCAL_SUBNET', 'y')}, or one device per rank: "
        f"UCX_NET_DEVICES={first.device}:{first.number}"
    )


CHECK = Check(code=CODE, title="any RoCE port can reach any port of the peer", run=run, explains=("PAIR008",))
