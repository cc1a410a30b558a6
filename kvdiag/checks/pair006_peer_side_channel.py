"""PAIR006: the side-channel address that a peer announces leads to the peer, and answers."""

import ipaddress
from collections.abc import Iterator

from kvdiag.checks.base import Check, Failed, Hosts, NotApplicable, NotObservable, Outcome, Passed
from kvdiag.derive.addresses import address_of, is_local_only
from kvdiag.derive.engines import transferring
from kvdiag.derive.rdma import joined
from kvdiag.derive.setting import group_of, set_variable
from kvdiag.model.engine import EngineSetup
from kvdiag.model.finding import Evidence, Finding, Severity
from kvdiag.model.interfaces import NetInterfaces
from kvdiag.model.missing import Missing, present
from kvdiag.model.pair import PairMeasurements, SideChannel
from kvdiag.model.snapshot import Snapshot

CODE = "PAIR006"
_VARIABLE = "VLLM_NIXL_SIDE_CHANNEL_HOST"
_DEFAULT = "localhost"
"""Of vllm/envs.py up to 0.33."""


def run(hosts: Hosts) -> Outcome:
    if not hosts.peers:
        return NotApplicable("no peer given: name one with --peer HOST:PORT")
    findings, hidden, fine = [], [], []
    for peer in hosts.peers:
        setups = transferring(peer, "nixl")
        if isinstance(setups, Missing):
            hidden.append(f"{peer.host}: {setups.missing}")
            continue
        for setup in setups:
            value = setup.variable(_VARIABLE)
            if setup.process.engine not in ("vllm", "dynamo"):
                continue
            if isinstance(value, Missing):
                hidden.append(f"{peer.host}: {value.missing}")
                continue
            found = list(_faults(hosts.local, peer, setup, value or _DEFAULT))
            findings += found
            if found:
                continue
            tried = f"{peer.host} {setup.process.name} at {value or _DEFAULT}"
            if _measured(peer, setup) is None and peer.host != hosts.local.host:
                hidden.append(f"{tried} was not tried: {_why_untried(peer)}")
            else:
                fine.append(tried)
    if findings:
        return Failed(tuple(findings))
    if hidden:
        return NotObservable(hidden[0])
    return Passed(joined(fine)) if fine else NotApplicable("no vLLM process with the NIXL connector at a peer")


def _faults(local: Snapshot, peer: Snapshot, setup: EngineSetup, value: str) -> Iterator[Finding]:
    one_host = peer.host == local.host
    measured = _measured(peer, setup)
    here, there = _addresses(local), _addresses(peer)
    if is_local_only(value) and not one_host:
        why = f"{local.host} would connect to itself"
    elif _canonical(value) in here and _canonical(value) not in there:
        why = f"that is an address of {local.host}, which would connect to itself"
    elif measured is not None and measured.error is not None and not one_host:
        why = f"nothing answers there on port {measured.port}: {measured.error}"
    else:
        return
    address = address_of(peer)
    yield Finding(
        code=CODE,
        severity=Severity.CRITICAL,
        subject=f"{setup.process.name} of {peer.host}",
        summary=f"{setup.process.name} of {peer.host} gives {value!r} as its NIXL side channel: {why}",
        evidence=(
            Evidence(
                name=_VARIABLE,
                value=str(setup.variable(_VARIABLE) or f"unset (default {_DEFAULT})"),
                source=f"/proc/{setup.process.pid}/environ of {peer.host}",
                threshold=f"an address of {peer.host} that {local.host} can reach",
            ),
            Evidence(name=f"addresses of {peer.host}", value=joined(there) or "none seen", source="ip address"),
        ),
        action=(
            f"on {peer.host}: {set_variable(group_of(setup.process), _VARIABLE, address)}; allow TCP port "
            f"{measured.port if measured else 5600} and those after it, one per rank"
        ),
        host=local.host,
    )


def _measured(peer: Snapshot, setup: EngineSetup) -> SideChannel | None:
    measurements = present(peer.part(PairMeasurements))
    channels = measurements.side_channels if measurements else ()
    return next((channel for channel in channels if channel.process == setup.process.name), None)


def _why_untried(peer: Snapshot) -> str:
    part = peer.part(PairMeasurements)
    return part.missing if isinstance(part, Missing) else "this process was not there when it was measured"


def _addresses(snapshot: Snapshot) -> list[str]:
    """Return the addresses by which other hosts may know this one, in the order of its interfaces."""
    interfaces = present(snapshot.part(NetInterfaces))
    listed = (text for device in (interfaces.devices if interfaces else ()) for text in device.addresses)
    return [text for text in listed if not ipaddress.ip_address(text).is_loopback]


def _canonical(value: str) -> str:
    try:
        return str(ipaddress.ip_address(value.strip("[]")))
    except ValueError:
        return value


CHECK = Check(code=CODE, title="the NIXL side channel of each peer can be reached", run=run)
