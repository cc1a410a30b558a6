"""PAIR008: one block was written to each peer over RDMA, and one read from it, and every byte was right."""

from kvdiag.checks.base import Check, Failed, Hosts, NotApplicable, NotObservable, Outcome, Passed
from kvdiag.derive.rdma import joined
from kvdiag.model.finding import Evidence, Finding, Severity
from kvdiag.model.missing import Missing
from kvdiag.model.pair import PairMeasurements, PairTransfer
from kvdiag.model.snapshot import Snapshot

CODE = "PAIR008"
_RETRIES_EXCEEDED = 12
"""IBV_WC_RETRY_EXC_ERR of <infiniband/verbs.h>: nothing came back."""


def run(hosts: Hosts) -> Outcome:
    if not hosts.peers:
        return NotApplicable("no peer given: name one with --peer HOST:PORT")
    findings, hidden, fine = [], [], []
    for peer in hosts.peers:
        measured = peer.part(PairMeasurements)
        transfers = measured if isinstance(measured, Missing) else measured.transfers
        if isinstance(transfers, Missing):
            hidden.append(f"{peer.host}: {transfers.missing}")
            continue
        failed = [transfer for transfer in transfers if not transfer.verified]
        if failed:
            findings.append(_finding(hosts.local, peer, failed, len(transfers)))
        else:
            fine += [_shown(peer, transfer) for transfer in transfers]
    if findings:
        return Failed(tuple(findings))
    if hidden:
        return NotObservable(hidden[0])
    return Passed(joined(fine)) if fine else NotObservable("no block was moved")


def _shown(peer: Snapshot, transfer: PairTransfer) -> str:
    return (
        f"{transfer.operation.upper()} of {transfer.size_bytes} bytes, path MTU {transfer.path_mtu}, between "
        f"{transfer.local} and {peer.host} {transfer.peer}"
    )


def _finding(local: Snapshot, peer: Snapshot, failed: list[PairTransfer], tried: int) -> Finding:
    what = joined(transfer.operation.upper() for transfer in failed)
    cause, action = _cause(failed)
    return Finding(
        code=CODE,
        severity=Severity.CRITICAL,
        subject=peer.host,
        summary=f"RDMA {what} of one block with {peer.host} failed ({len(failed)} of {tried} tried): {cause}",
        evidence=tuple(item for transfer in failed for item in _evidence(peer, transfer)),
        action=action,
        host=local.host,
        devices=tuple(sorted({transfer.local.partition("/")[0] for transfer in failed if transfer.local})),
    )


def _cause(failed: list[PairTransfer]) -> tuple[str, str]:
    """Return what the failures have in common, and what to do; the errors themselves are evidence."""
    lost = [transfer for transfer in failed if transfer.wc_status == _RETRIES_EXCEEDED]
    if any(transfer.udp == "answers" for transfer in lost):
        return (
            "other packets between the very addresses arrive, RoCE packets do not: consistent with UDP port 4791 being "
            "dropped",
            "let UDP port 4791 through on both hosts and between: nft list ruleset; iptables -L -n -v; security groups",
        )
    if any(transfer.udp == "silent" for transfer in lost):
        return (
            "no packet between the two addresses is answered: consistent with a wrong VLAN, subnet or rail",
            "ping -I LOCAL-GID-ADDRESS PEER-GID-ADDRESS; then compare VLAN, switch port and rail of both ends",
        )
    if lost:
        return (
            "the peer's port answers nothing",
            "check link, routing and partition of both ends: kvdiag explain WC012",
        )
    if any("no route" in (transfer.error or "") for transfer in failed):
        return (
            "the kernel finds no way from one GID to the other: the rails or fabrics are separate",
            "choose ports of one fabric (--device of preflight and of the agent), or route: ip route get PEER-GID",
        )
    if any("wrong bytes" in (transfer.error or "") for transfer in failed):
        return ("bytes arrived changed", "take this pair out of service; suspect memory, NIC or driver of either end")
    return (failed[0].error or "unknown", "see the evidence; kvdiag probe bandwidth PEER repeats it with more detail")


def _evidence(peer: Snapshot, transfer: PairTransfer) -> tuple[Evidence, ...]:
    ends = f"{transfer.local or 'no port'} -> {peer.host} {transfer.peer or '(not connected)'}"
    found = [
        Evidence(
            name=f"RDMA {transfer.operation.upper()}",
            value=transfer.error or "failed",
            source=f"queue pair {ends}",
            threshold=f"{transfer.size_bytes} verified bytes",
        )
    ]
    if transfer.udp:
        found.append(
            Evidence(name="a UDP datagram between the same addresses", value=transfer.udp, source="UDP port 33434")
        )
    return tuple(found)


CHECK = Check(
    code=CODE,
    title="one block moves each way over RDMA",
    run=run,
    explained_by=("FAB002", "GID004", "MTU001", "NET003", "TRN002"),
)
