"""GID003: every ACTIVE RoCE port has a RoCE v2 GID that another subnet can answer."""

from collections.abc import Sequence

from kvdiag.checks.base import Check, Failed, Hosts, NotApplicable, NotObservable, Outcome, Passed
from kvdiag.derive.environments import environments
from kvdiag.derive.narrowing import use_only
from kvdiag.derive.rdma import active_ports, attribute, device_of, is_roce, is_v2, joined, netdev_of, routable_v2
from kvdiag.model.finding import Evidence, Finding, Severity
from kvdiag.model.missing import Missing, present
from kvdiag.model.rdma import Gid, Port, RdmaDevices
from kvdiag.model.snapshot import Snapshot

CODE = "GID003"


def run(hosts: Hosts) -> Outcome:
    devices = hosts.local.part(RdmaDevices)
    if isinstance(devices, Missing):
        return NotObservable(devices.missing)
    active = active_ports(devices)
    ports = [port for port in active if is_roce(device_of(devices, port), port) and _in_use(hosts.local, port)]
    if not ports:
        return NotApplicable("no ACTIVE RoCE port that the environment lets be used")
    hidden = [reason for port in ports if (reason := _hidden(port)) is not None]
    good = [port for port in ports if routable_v2(port)]
    bad = [port for port in ports if port not in good and _hidden(port) is None]
    infiniband = any(port.link_layer == "InfiniBand" for port in active)
    findings = tuple(_finding(port, good, infiniband, hosts.local) for port in bad)
    if findings:
        return Failed(findings)
    if hidden:
        return NotObservable(hidden[0].missing)
    return Passed(
        joined(f"{port.name} index {routable_v2(port)[0].index}: {routable_v2(port)[0].gid}" for port in good)
    )


def _in_use(snapshot: Snapshot, port: Port) -> bool:
    """Return whether a transport of at least one process may use the port."""
    named = present(environments(snapshot)) or ()
    return not named or any(item.lets_use(port) for item in named)


def _hidden(port: Port) -> Missing | None:
    """Return why the port's GIDs cannot be judged, or None where they can."""
    if isinstance(port.gids, Missing):
        return port.gids
    if routable_v2(port):
        return None
    return next((gid.type for gid in port.gids if isinstance(gid.type, Missing)), None)


def _finding(port: Port, good: Sequence[Port], infiniband: bool, snapshot: Snapshot) -> Finding:
    gids = present(port.gids) or ()
    if not gids:
        what = "has no GID at all"
    elif any(is_v2(gid) for gid in gids):
        what = "has only link-local RoCE v2 GIDs: no other subnet can answer them"
    else:
        what = "has only RoCE v1 GIDs: no router forwards them"
    return Finding(
        code=CODE,
        severity=Severity.WARNING if good or infiniband else Severity.CRITICAL,
        subject=port.name,
        summary=f"port {port.name} {what}",
        evidence=_evidence(port, gids),
        action=_action(port, gids, good, snapshot),
        host=snapshot.host,
        devices=(port.device,),
    )


def _evidence(port: Port, gids: Sequence[Gid]) -> tuple[Evidence, ...]:
    threshold = "a RoCE v2 GID that is not link-local (fe80::/10)"
    if not gids:
        return (Evidence(name="used GID slots", value="0", source=attribute(port, "gids"), threshold=threshold),)
    return tuple(
        Evidence(
            name=f"GID {gid.index}",
            value=f"{gid.gid} ({gid.type})",
            source=attribute(port, f"gids/{gid.index}"),
            threshold=threshold,
        )
        for gid in gids[:8]
    )


def _action(port: Port, gids: Sequence[Gid], good: Sequence[Port], snapshot: Snapshot) -> str:
    netdev = netdev_of(port)
    address = f"ip addr add ADDRESS/PREFIX dev {netdev or 'IFACE'}"
    if netdev is None:
        address += f" (rdma link show {port.name} names the interface)"
    if gids and not any(is_v2(gid) for gid in gids):
        return f"use a driver and firmware that offer RoCE v2 on {port.device}, or keep both ends in one subnet"
    if good and (only := use_only(snapshot, tuple(good))):
        return f"leave the port out: {only}; or give it an address: {address}"
    return f"give its interface an address: {address}"


CHECK = Check(code=CODE, title="RoCE ports have a routable RoCE v2 GID", run=run)
