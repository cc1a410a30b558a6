"""The proof of what carried the bytes: the kernel's own counts before and after, and its objects in between."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace

from kvdiag.errors import UndeterminedError
from kvdiag.model.finding import Evidence
from kvdiag.model.missing import Missing
from kvdiag.model.probe import TransportProof
from kvdiag.model.rdma import PortCounters, RdmaCounters
from kvdiag.sources import rdma_netlink
from kvdiag.sources.base import Context
from kvdiag.sources.rdma_counters import RdmaCountersSource
from kvdiag_probes.datapath import Operation

_SYSFS = "/sys/class/infiniband/{device}/ports/{port}"
_LARGEST_MTU = 4096
# PMA *_data counters count 4-byte words (InfiniBand specification, PortCountersExtended).
_WORD_BYTES = 4


CONTROL_BYTES = 64 << 10
"""More than the control channel's own requests and answers move in a short probe (a few KiB)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Objects:
    """This process's live RDMA objects on one device, by kind, and the states of its queue pairs by number."""

    counts: dict[str, int]
    states: dict[int, str]


def read_counters(device: str, port: int) -> PortCounters | Missing:
    """Return one port's counters from sysfs."""
    counters = RdmaCountersSource().read(Context())
    if isinstance(counters, Missing):
        return counters
    assert isinstance(counters, RdmaCounters)
    found = [one for one in counters.ports if (one.device, one.port) == (device, port)]
    return found[0] if found else Missing(f"no counters of {device}/{port} in sysfs")


def read_all_counters() -> RdmaCounters | Missing:
    """Return the counters of every RDMA port here from sysfs."""
    counters = RdmaCountersSource().read(Context())
    assert isinstance(counters, RdmaCounters | Missing)
    return counters


def read_objects(device: str) -> Objects | Missing:
    """Return this process's objects on a device, from RDMA netlink."""
    pid = os.getpid()
    try:
        resources = rdma_netlink.read_resources(device)
    except (UndeterminedError, OSError) as error:
        return Missing(f"RDMA netlink: {error}")
    pairs = [pair for pair in resources.queue_pairs if pair.pid == pid]
    counts = {other.kind: other.count for other in resources.others if other.pid == pid}
    counts |= {"qp": len(pairs), "mr": sum(region.pid == pid for region in resources.memory_regions)}
    return Objects(counts=counts, states={pair.lqpn: pair.state for pair in pairs})


def judge_rdma(
    operation: Operation,
    payload: int,
    path_mtu: int,
    qpn: int,
    before: PortCounters | Missing,
    after: PortCounters | Missing,
    during: Objects | Missing,
    control_bytes: int,
) -> TransportProof:
    """Compare what the RDMA port moved with the payload, in bytes.

    Where the port counts no bytes (rdma_rxe), packets × path MTU is the most that they can have carried.
    """
    evidence = [_tcp_evidence("TCP bytes on the control connection", control_bytes, payload)]
    missing = []
    carried: int | None = None
    if isinstance(before, Missing) or isinstance(after, Missing):
        missing.append(str(before if isinstance(before, Missing) else after))
    else:
        carried = _carried(operation, path_mtu, before, after, evidence, payload)
        if carried is None:
            missing.append(f"{after.device}/{after.port} has neither byte nor packet counters")
    state: str | None = None
    if isinstance(during, Missing):
        missing.append(str(during))
    else:
        state = during.states.get(qpn, "absent")
        evidence.append(
            Evidence(name=f"queue pair {qpn}", value=state, source="RDMA netlink RES_QP_GET", threshold="RTS")
        )
        evidence += [
            Evidence(name=f"{kind} of this process", value=str(count), source="RDMA netlink")
            for kind, count in sorted(during.counts.items())
        ]
    over_control = control_bytes >= payload
    if over_control and payload < CONTROL_BYTES:
        missing.append(f"{payload} bytes are less than requests to the agent take: move more to tell them apart")
    contradicted = (
        (carried is not None and carried < payload)
        or state not in (None, "RTS")
        or (over_control and payload >= CONTROL_BYTES)
    )
    status = "contradicted" if contradicted else "not_observable" if carried is None else "proved"
    return TransportProof(
        status=status,  # type: ignore[arg-type]
        payload_bytes=payload,
        evidence=tuple(evidence),
        missing=tuple(missing),
    )


def carried_by_ports(
    operation: Operation, payload: int, before: RdmaCounters | Missing, after: RdmaCounters | Missing
) -> tuple[bool, tuple[Evidence, ...]]:
    """Return whether all RDMA ports together can have carried a payload, and what each that moved anything counted.

    For a library that chooses ports itself. Packets are taken for as large as any path MTU allows.
    """
    if isinstance(before, Missing) or isinstance(after, Missing):
        return False, ()
    earlier = {(port.device, port.port): port for port in before.ports}
    found: list[Evidence] = []
    carried = 0
    for port in after.ports:
        one: list[Evidence] = []
        if (old := earlier.get((port.device, port.port))) is not None:
            grown = _carried(operation, _LARGEST_MTU, old, port, one, payload)
            if grown:
                carried += grown
                found += [replace(item, name=f"{port.device}/{port.port} {item.name}") for item in one]
    return carried >= payload, tuple(found)


def joined(proofs: Sequence[TransportProof]) -> TransportProof:
    """Return one proof for several rails: as good as the worst of them, for the payloads of all."""
    gravity = ("contradicted", "not_observable", "proved")
    return TransportProof(
        status=min((proof.status for proof in proofs), key=gravity.index),
        payload_bytes=sum(proof.payload_bytes for proof in proofs),
        evidence=tuple(item for proof in proofs for item in proof.evidence),
        missing=tuple(reason for proof in proofs for reason in proof.missing),
    )


def named(operation: Operation, one: TransportProof) -> TransportProof:
    """Return a proof whose counts say of which operation they are: those that a payload bounds, not a shared state."""
    return replace(
        one,
        evidence=tuple(
            replace(item, name=f"{operation.upper()}: {item.name}")
            if (item.threshold or "")[:1] in ("<", ">")
            else item
            for item in one.evidence
        ),
    )


def judge_tcp(payload: int, moved: int) -> TransportProof:
    """Compare what the data connection moved in the payload's direction, by the kernel's count, with the payload."""
    return TransportProof(
        status="proved" if moved >= payload else "contradicted",
        payload_bytes=payload,
        evidence=(
            Evidence(
                name="TCP bytes on the data connection", value=str(moved), source="TCP_INFO", threshold=f">= {payload}"
            ),
        ),
    )


def _carried(
    operation: Operation,
    path_mtu: int,
    before: PortCounters,
    after: PortCounters,
    evidence: list[Evidence],
    payload: int,
) -> int | None:
    data, packets = ("port_xmit_data", "sent_pkts") if operation.pushes else ("port_rcv_data", "rcvd_pkts")
    folder = _SYSFS.format(device=after.device, port=after.port)
    if data in before.counters and data in after.counters:
        words = after.counters[data] - before.counters[data]
        evidence.append(
            Evidence(
                name=f"{data} × {_WORD_BYTES} bytes",
                value=str(words * _WORD_BYTES),
                source=f"{folder}/counters/{data}",
                threshold=f">= {payload}",
            )
        )
        return words * _WORD_BYTES
    if packets in before.hw_counters and packets in after.hw_counters:
        count = after.hw_counters[packets] - before.hw_counters[packets]
        evidence.append(
            Evidence(
                name=packets,
                value=str(count),
                source=f"{folder}/hw_counters/{packets}",
                threshold=f">= {-(-payload // path_mtu)} (payload / path MTU {path_mtu})",
            )
        )
        return count * path_mtu
    return None


def _tcp_evidence(name: str, moved: int, payload: int) -> Evidence:
    return Evidence(name=name, value=str(moved), source="TCP_INFO", threshold=f"< {payload}")
