"""PAIR003: InfiniBand ports of both ends share a subnet and a partition."""

import ipaddress

from kvdiag.checks.base import Check, Failed, Hosts, NotApplicable, NotObservable, Outcome, Passed
from kvdiag.derive.environments import environments
from kvdiag.derive.pairs import used_ports
from kvdiag.derive.rdma import attribute, joined
from kvdiag.model.finding import Evidence, Finding, Severity
from kvdiag.model.missing import Missing, present
from kvdiag.model.rdma import Port
from kvdiag.model.snapshot import Snapshot

CODE = "PAIR003"
_FULL = 0x8000
"""The membership bit of a P_Key: two limited members may not talk (InfiniBand specification, section 10.9.1.2)."""


def run(hosts: Hosts) -> Outcome:
    if not hosts.peers:
        return NotApplicable("no peer given: name one with --peer HOST:PORT")
    ours = _infiniband(hosts.local)
    findings, agreed, hidden = [], [], []
    for peer in hosts.peers:
        theirs = _infiniband(peer)
        if not ours or not theirs:
            continue
        unseen = [item for port in (*ours, *theirs) for item in (port.gids, port.pkeys) if isinstance(item, Missing)]
        # Which of several ports an engine uses stands in its environment.
        unseen += [
            named
            for host, ports in ((hosts.local, ours), (peer, theirs))
            if len(ports) > 1 and isinstance(named := environments(host), Missing)
        ]
        subnets = {prefix for port in ours for prefix in _prefixes(port)}
        shared = subnets & {prefix for port in theirs for prefix in _prefixes(port)}
        partitions = {key for here in ours for there in theirs for key in _partitions(here, there)}
        if shared and partitions and not unseen:
            agreed.append(f"subnet {_text(min(shared))} and partition 0x{min(partitions):04x} with {peer.host}")
        elif unseen:
            hidden.append(unseen[0].missing)
        else:
            findings.append(_finding(hosts.local, ours, peer, theirs, no_subnet=not shared))
    if findings:
        return Failed(tuple(findings))
    if hidden:
        return NotObservable(hidden[0])
    return Passed(joined(agreed)) if agreed else NotApplicable("no ACTIVE InfiniBand port here and at a peer")


def _infiniband(snapshot: Snapshot) -> list[Port]:
    return [port for port in present(used_ports(snapshot)) or () if port.link_layer == "InfiniBand"]


def _prefixes(port: Port) -> set[int]:
    """Return the subnet prefixes (upper 64 bits) of a port's GIDs."""
    return {int(ipaddress.IPv6Address(gid.gid)) >> 64 for gid in present(port.gids) or ()}


def _partitions(here: Port, there: Port) -> set[int]:
    """Return the partitions in which two ports may talk: one of them at least is a full member."""
    return {
        one & ~_FULL
        for one in present(here.pkeys) or ()
        for other in present(there.pkeys) or ()
        if one & ~_FULL and one & ~_FULL == other & ~_FULL and (one | other) & _FULL
    }


def _text(prefix: int) -> str:
    return f"{ipaddress.IPv6Address(prefix << 64)}/64"


def _finding(local: Snapshot, ours: list[Port], peer: Snapshot, theirs: list[Port], *, no_subnet: bool) -> Finding:
    if no_subnet:
        summary = f"{local.host} and {peer.host} are in different InfiniBand subnets: only a router could connect them"
        action = "pair hosts of one subnet; `ibstat` and the subnet manager's subnet_prefix show which is which"
    else:
        summary = f"{local.host} and {peer.host} share no partition with a full member: their packets are dropped"
        action = "have the subnet manager's partitions.conf make both ends members of one partition, one of them =full"
    return Finding(
        code=CODE,
        severity=Severity.CRITICAL,
        subject=peer.host,
        summary=summary,
        evidence=tuple(
            _evidence(snapshot, port, no_subnet)
            for snapshot, ports in ((local, ours), (peer, theirs))
            for port in ports
        ),
        action=action,
        host=local.host,
    )


def _evidence(snapshot: Snapshot, port: Port, no_subnet: bool) -> Evidence:
    values = map(_text, sorted(_prefixes(port))) if no_subnet else (f"0x{key:04x}" for key in present(port.pkeys) or ())
    return Evidence(
        name=f"{snapshot.host} {port.name} {'subnet prefix' if no_subnet else 'P_Keys'}",
        value=joined(values) or "none",
        source=attribute(port, "gids/0" if no_subnet else "pkeys"),
    )


CHECK = Check(code=CODE, title="InfiniBand ports share a subnet and a partition", run=run, explains=("PAIR008",))
