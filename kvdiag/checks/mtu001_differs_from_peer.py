"""MTU001: RDMA ports of both ends have one active MTU."""

from kvdiag.checks.base import Check, Failed, Hosts, NotApplicable, NotObservable, Outcome, Passed
from kvdiag.derive.engines import transferring
from kvdiag.derive.environments import environments
from kvdiag.derive.path_mtu import PathMtu, active_mtu
from kvdiag.derive.rdma import active_ports, netdev_of
from kvdiag.derive.setting import group_of, set_variable
from kvdiag.model.finding import Evidence, Finding, Severity
from kvdiag.model.missing import Missing, present
from kvdiag.model.rdma import Port, RdmaDevices
from kvdiag.model.snapshot import Snapshot

CODE = "MTU001"


def run(hosts: Hosts) -> Outcome:
    if not hosts.peers:
        return NotApplicable("no peer given: name one with --peer HOST:PORT")
    findings: list[Finding] = []
    hidden: list[str] = []
    compared: list[str] = []
    for peer in hosts.peers:
        for here, there in _pairs(hosts.local, peer):
            ours, theirs = active_mtu(hosts.local, here), active_mtu(peer, there)
            if isinstance(ours, Missing) or isinstance(theirs, Missing):
                hidden += [
                    f"{host} {port.name}: {mtu.missing}"
                    for host, port, mtu in ((hosts.local.host, here, ours), (peer.host, there, theirs))
                    if isinstance(mtu, Missing)
                ]
            elif ours.bytes == theirs.bytes:
                compared.append(f"{here.name} and {peer.host} {there.name}: {ours.bytes}")
            else:
                findings.append(_finding(hosts.local, here, ours, peer, there, theirs))
    if findings:
        return Failed(tuple(findings))
    if hidden:
        return NotObservable(hidden[0])
    if not compared:
        return NotApplicable("no two ACTIVE ports of one link layer on this host and a peer")
    return Passed(f"{len(compared)} port pair(s) agree ({compared[0]} …)" if len(compared) > 1 else compared[0])


def _pairs(local: Snapshot, peer: Snapshot) -> list[tuple[Port, Port]]:
    """Return the ports that would talk: those of one name, and where no name is shared every port with the first
    one of the same link layer there.
    """
    ours, theirs = _ports(local), _ports(peer)
    named = [(here, there) for here in ours for there in theirs if here.name == there.name]
    if named:
        return [(here, there) for here, there in named if here.link_layer == there.link_layer]
    found = []
    for here in ours:
        there = next((port for port in theirs if port.link_layer == here.link_layer), None)
        if there is not None:
            found.append((here, there))
    return found


def _ports(snapshot: Snapshot) -> list[Port]:
    devices = present(snapshot.part(RdmaDevices))
    named = present(environments(snapshot)) or ()
    return [
        port
        for port in (active_ports(devices) if devices else ())
        if not named or any(item.lets_use(port) for item in named)
    ]


def _finding(local: Snapshot, here: Port, ours: PathMtu, peer: Snapshot, there: Port, theirs: PathMtu) -> Finding:
    smaller = min(ours.bytes, theirs.bytes)
    lower = f"{local.host} {here.name}" if ours.bytes == smaller else f"{peer.host} {there.name}"
    mooncake = _mooncake(local) or _mooncake(peer)
    netdev = netdev_of(here if ours.bytes == smaller else there) or "IFACE"
    remedy = f"raise the interface MTU behind {lower} (ip link set {netdev} mtu 9000, and every switch between)"
    if mooncake:
        remedy = f"on both ends: {_set_mtu(local, peer, smaller)}; or {remedy}"
    return Finding(
        code=CODE,
        # Established only for Mooncake: it sets the path MTU from its own port and never exchanges it.
        severity=Severity.CRITICAL if mooncake else Severity.WARNING,
        subject=f"{here.name} with {peer.host} {there.name}",
        summary=f"active MTU is {ours.bytes} on {here.name} and {theirs.bytes} on {peer.host} {there.name}",
        evidence=(
            Evidence(name=f"{local.host} {here.name}", value=str(ours.bytes), source=ours.source),
            Evidence(
                name=f"{peer.host} {there.name}",
                value=str(theirs.bytes),
                source=theirs.source,
                threshold=f"{ours.bytes} as on {local.host}",
            ),
        ),
        action=remedy,
        host=local.host,
        devices=(here.device,),
    )


def _mooncake(snapshot: Snapshot) -> bool:
    """Return whether Mooncake moves the blocks there over RDMA, and nothing fixes its MTU."""
    found = present(transferring(snapshot, "mooncake")) or ()
    return any(
        connector.library == "mooncake" and connector.protocol != "tcp" and engine.variable("MC_MTU") is None
        for engine in found
        for connector in engine.connectors
    )


def _set_mtu(local: Snapshot, peer: Snapshot, size: int) -> str:
    engines = [*(present(transferring(local, "mooncake")) or ()), *(present(transferring(peer, "mooncake")) or ())]
    ways = dict.fromkeys(set_variable(group_of(engine.process), "MC_MTU", size) for engine in engines)
    return " and ".join(ways)


CHECK = Check(code=CODE, title="the active MTU is that of the peer", run=run)
