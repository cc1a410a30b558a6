"""TOP003: where every GPU serves, the cards have sent a like number of bytes."""

import json
from dataclasses import dataclass

from kvdiag.checks.base import Check, Failed, Hosts, NotApplicable, NotObservable, Outcome, Passed
from kvdiag.derive.engines import setups
from kvdiag.derive.environments import environments
from kvdiag.derive.fabric import fabric_ports
from kvdiag.derive.gpu_map import nic_map, ranks_of
from kvdiag.derive.rdma import active_ports, attribute, joined, unread
from kvdiag.derive.ucx_users import uses_ucx
from kvdiag.model.finding import Evidence, Finding, Severity
from kvdiag.model.missing import Missing, present
from kvdiag.model.pci_topology import PciTopology
from kvdiag.model.rdma import Port, RdmaCounters, RdmaDevices
from kvdiag.model.snapshot import Snapshot

CODE = "TOP003"
_WARNING = 10
"""Ratio of the most to the least; jobs since boot count too, so it is never more than a warning. One public report had
225 GB and more on four cards and 1 GB on the other four, another GB/s on four and 10 KB/s on four."""
_MOST_AT_LEAST = 10_000_000_000
"""Below 10 GB on the busiest card since boot, warm-up and probes outweigh serving."""


@dataclass(frozen=True, slots=True)
class _Sent:
    port: Port
    bytes: int
    source: str


def run(hosts: Hosts) -> Outcome:
    engines = setups(hosts.local)
    if isinstance(engines, Missing):
        return NotObservable(engines.missing)
    if not engines:
        return NotApplicable("no engine runs here: what the cards sent since boot says nothing about it")
    ports = _ports(hosts.local)
    if len(ports) < 2:
        return NotApplicable("fewer than two ports for transfers")
    ranks = ranks_of(engines)
    topology = hosts.local.part(PciTopology)
    gpus = 0 if isinstance(topology, Missing) else len(topology.gpus)
    if ranks < min(len(ports), gpus or len(ports)):
        return NotApplicable(f"{ranks} rank(s) serve here: that is no reason for {len(ports)} ports to be busy")
    counters = hosts.local.part(RdmaCounters)
    if isinstance(counters, Missing):
        return NotObservable(counters.missing)
    sent = [amount for port in ports if (amount := _sent(counters, port)) is not None]
    if len(sent) < len(ports):
        hidden = next(port for port in ports if all(port is not item.port for item in sent))
        return NotObservable(f"no counter of the bytes that {hidden.name} sent can be read")
    most, least = max(sent, key=lambda item: item.bytes), min(sent, key=lambda item: item.bytes)
    if most.bytes < _MOST_AT_LEAST:
        return NotApplicable(f"no port has sent 10 GB since boot (most: {most.port.name}, {_amount(most.bytes)})")
    devices = hosts.local.part(RdmaDevices)
    unknown = None if isinstance(devices, Missing) else unread(active_ports(devices), "link_layer", "rate_gbps")
    if most.bytes <= _WARNING * least.bytes and unknown is not None:
        return NotObservable(unknown.missing)
    if most.bytes <= _WARNING * least.bytes:
        return Passed(
            f"{len(sent)} ports sent {_amount(least.bytes)} ({least.port.name}) to {_amount(most.bytes)} "
            f"({most.port.name})"
        )
    return Failed((_finding(hosts, sent, most.bytes, least.bytes),))


def _ports(snapshot: Snapshot) -> list[Port]:
    named = present(environments(snapshot)) or ()
    return [port for port in fabric_ports(snapshot) if not named or any(item.lets_use(port) for item in named)]


def _sent(counters: RdmaCounters, port: Port) -> _Sent | None:
    """Return the bytes that a port sent; port_xmit_data counts words of 4 bytes whatever the link's width."""
    known = next((item for item in counters.ports if (item.device, item.port) == (port.device, port.number)), None)
    if known is None:
        return None
    if (words := known.counters.get("port_xmit_data")) is not None:
        return _Sent(port, words * 4, attribute(port, "counters/port_xmit_data") + " × 4")
    if (plain := known.hw_counters.get("tx_bytes")) is not None:
        return _Sent(port, plain, attribute(port, "hw_counters/tx_bytes"))
    return None


def _amount(size: int) -> str:
    return f"{size / 1e9:.1f} GB"


def _finding(hosts: Hosts, sent: list[_Sent], most: int, least: int) -> Finding:
    idle = [item.port for item in sent if item.bytes * _WARNING < most]
    return Finding(
        code=CODE,
        severity=Severity.WARNING,
        subject=joined(port.name for port in idle),
        summary=(
            f"{len(sent) - len(idle)} of {len(sent)} ports carried the traffic since boot: "
            f"the busiest sent {most / least:.0f} times as much as the idlest"
            if least
            else f"{len(idle)} of {len(sent)} ports carried next to nothing since boot, the busiest {_amount(most)}"
        ),
        evidence=tuple(
            Evidence(
                name=f"{item.port.name} sent",
                value=_amount(item.bytes),
                source=item.source,
                threshold=f"at least {_amount(most // _WARNING)}" if item.port in idle else None,
            )
            for item in sent
        ),
        action=_action(hosts, [item.port for item in sent]),
        host=hosts.local.host,
        devices=tuple(port.device for port in idle),
    )


def _action(hosts: Hosts, ports: list[Port]) -> str:
    pairs = nic_map(hosts.local, ports)
    engines = [engine for engine in present(setups(hosts.local)) or () if engine.options]
    if engines and all(engine.process.engine == "sglang" and not uses_ucx(engine) for engine in engines) and pairs:
        cards = json.dumps({str(gpu): port.device for gpu, port in pairs})
        return f"give each GPU the card nearest to it: start SGLang with --disaggregation-ib-device '{cards}'"
    if len(engines) == 1 and ranks_of(engines) > 1:
        nearest = f"; nearest: {', '.join(f'GPU {gpu} {port.name}' for gpu, port in pairs)}" if pairs else ""
        return (
            "read the counters twice under load; if they grow as unevenly, see which port each rank takes (start with "
            "UCX_LOG_LEVEL=info UCX_PROTO_INFO=y): the ranks of one engine share its environment, so UCX_NET_DEVICES "
            f"cannot tell them apart{nearest}"
        )
    if not pairs:
        return "pin one port per rank: UCX_NET_DEVICES=DEVICE:1, a different one for each"
    ranks = "; ".join(f"GPU {gpu}: UCX_NET_DEVICES={port.device}:{port.number}" for gpu, port in pairs)
    return f"pin each rank to the port nearest to its GPU: {ranks}"


CHECK = Check(code=CODE, title="traffic is spread over the cards", run=run, explained_by=("FAB002", "TRN001"))
