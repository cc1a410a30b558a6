"""What a work completion's status means: its name, its likely causes in order, and what to do next."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from kvdiag.errors import UnavailableError

FLUSHED, INVALID_REQUEST, RETRIES_EXCEEDED = 5, 9, 12
_LOSS = (
    "completer_retry_err",
    "link_downed",
    "local_ack_timeout_err",
    "packet_seq_err",
    "rcvd_seq_err",
)
"""Counters that move at the requester where packets were lost: rdma_rxe's, mlx5's, and the port's own."""
ControlState = Literal["answers", "refuses", "silent", "stuck"]
"""What the agent's control port did: `stuck` takes connections but does not answer."""


@dataclass(frozen=True, slots=True)
class Status:
    """`causes` are ranked, likeliest first."""

    name: str
    causes: tuple[str, ...]
    action: str


# Names and order: enum ibv_wc_status of <infiniband/verbs.h>.
STATUSES = {
    1: Status(
        "LOC_LEN_ERR", ("the message is longer than the local buffer or the port's max_msg_sz",), "use a smaller --size"
    ),
    2: Status(
        "LOC_QP_OP_ERR",
        ("the local key is wrong", "the queue pair was not set up for this operation"),
        "check that nothing deregistered the local buffer (a wrong local key: mlx5 says LOC_PROT_ERR, rxe this)",
    ),
    3: Status("LOC_EEC_OP_ERR", ("the local end-to-end context failed",), "report it: no kvdiag probe uses one"),
    4: Status(
        "LOC_PROT_ERR",
        (
            "the local buffer leaves its registration",
            "the local key is wrong or its memory was deregistered",
            "the local registration lacks the right (a READ needs LOCAL_WRITE)",
        ),
        "check the local buffer's registration",
    ),
    5: Status("WR_FLUSH_ERR", ("an earlier operation failed; this one was only flushed",), "look at the first error"),
    6: Status("MW_BIND_ERR", ("a memory window could not be bound",), "check the memory window's rights"),
    7: Status(
        "BAD_RESP_ERR",
        ("the peer's adapter answered with an opcode that does not fit", "the answer was damaged on the way"),
        "compare firmware and driver of both adapters, and look for CRC errors on the path",
    ),
    8: Status("LOC_ACCESS_ERR", ("the local registration lacks LOCAL_WRITE",), "check the local registration's rights"),
    9: Status(
        "REM_INV_REQ_ERR",
        ("the peer's queue pair does not allow this operation", "the message exceeds what the peer accepts"),
        "check the peer's queue pair access flags and the path MTU of both ends",
    ),
    10: Status(
        "REM_ACCESS_ERR",
        (
            "the remote key is wrong or its memory was deregistered",
            "the address range leaves the peer's registration",
            "the peer's registration lacks the right for this operation",
        ),
        "compare key, address and length with what the peer registered; run the probe again to get fresh ones",
    ),
    11: Status("REM_OP_ERR", ("the peer's adapter failed to do the operation",), "look at the peer's kernel log"),
    12: Status(
        "RETRY_EXC_ERR",
        (
            "the peer's process or host is gone",
            "the path drops the packets (link down, routing, VLAN, MTU, firewall on UDP 4791)",
            "the path loses so many packets that the retries ran out",
        ),
        "check link and port state at both ends, then ping the peer's RDMA address with the path MTU's size",
    ),
    13: Status(
        "RNR_RETRY_EXC_ERR",
        (
            "the peer had no receive posted for a message with immediate data or a send",
            "the peer's process is stuck or too slow to post receives",
        ),
        "check that the peer's process is alive, posts enough receives and that rnr_retry outlasts its pauses",
    ),
    14: Status(
        "LOC_RDD_VIOL_ERR", ("the local reliable datagram domain does not fit",), "report it: nothing here uses one"
    ),
    15: Status("REM_INV_RD_REQ_ERR", ("the peer refused a datagram request",), "report it: nothing here uses one"),
    16: Status(
        "REM_ABORT_ERR", ("the peer aborted the operation", "the peer reset its queue pair"), "look at the peer's log"
    ),
    17: Status("INV_EECN_ERR", ("the end-to-end context's number is invalid",), "report it: nothing here uses one"),
    18: Status("INV_EEC_STATE_ERR", ("the end-to-end context's state is invalid",), "report it: nothing here uses one"),
    19: Status(
        "FATAL_ERR",
        ("the adapter failed or was reset", "its driver was reloaded under the process"),
        "look for a reset in the kernel log (dmesg), then restart the process",
    ),
    20: Status(
        "RESP_TIMEOUT_ERR", ("the peer answered, but not in time",), "check the load of the peer's adapter and its PCIe"
    ),
    21: Status(
        "GENERAL_ERR",
        ("the adapter reports an error that fits no other status",),
        "look up the vendor's syndrome, and the kernel log",
    ),
    22: Status("TM_ERR", ("tag matching failed",), "report it: no kvdiag probe uses tag matching"),
    23: Status("TM_RNDV_INCOMPLETE", ("a tag-matching rendezvous did not end",), "report it: no probe uses it"),
}


class CompletionError(UnavailableError):
    """An `operation` that completed with an error: its ibv_wc_status, and the adapter's syndrome or 0."""

    def __init__(self, message: str, status: int, vendor: int = 0, operation: str = "RDMA") -> None:
        super().__init__(message)
        self.status = status
        self.vendor = vendor
        self.operation = operation


def leading(statuses: Iterable[int]) -> int | None:
    """Return the status that says what happened: the first that is neither success nor flushed; else 5 or None."""
    bad = [status for status in statuses if status]
    return next((status for status in bad if status != FLUSHED), FLUSHED if bad else None)


def completion_error(
    operation: str,
    peer: str,
    status: int,
    *,
    vendor: int = 0,
    local_port: str = "",
    control: ControlState | None = None,
    seen: Sequence[str] = (),
) -> CompletionError:
    """Return the error of a failed operation, its causes narrowed by what else is known.

    `local_port` is set to the name and state of this end's port where that is not ACTIVE; `control` says what the
    control channel did afterwards (None: not tried). `seen` are further facts for whoever judges the causes.
    """
    known = STATUSES.get(status, Status(f"status {status}", ("unknown to kvdiag",), "look at the kernel logs"))
    causes, action = known.causes, known.action
    if status == RETRIES_EXCEEDED and local_port:
        causes, action = (f"the local port {local_port}",), "check cable, switch port and netdev of this end"
    elif status == RETRIES_EXCEEDED and control == "refuses":
        causes, action = ("the agent is gone: its control port refuses connections",), "restart the agent"
    elif status == RETRIES_EXCEEDED and control == "silent":
        causes = ("the peer's host is gone", "the whole path is cut: the control channel is silent too")
    elif status == RETRIES_EXCEEDED and control in ("answers", "stuck"):
        causes = known.causes[1:]
    elif status == INVALID_REQUEST and any(one.startswith(_LOSS) for one in seen):
        # rdma_rxe answers so where a message begins anew before the one before has ended (check_op_seq, rxe_resp.c).
        lost = "packets were lost, and the peer took what was sent again for an invalid request (rdma_rxe does)"
        causes, action = (lost, *known.causes), f"look for loss on the path first; without any, {action}"
    ranked = causes[0] if len(causes) == 1 else "; ".join(f"({i}) {cause}" for i, cause in enumerate(causes, 1))
    detail = f"{known.name} ({status}{f', vendor 0x{vendor:x}' if vendor else ''})"
    facts = f"; seen: {', '.join(seen)}" if seen else ""
    line = f"{peer}: {operation} failed with {detail}: {ranked}{facts}; next: {action}"
    return CompletionError(line, status, vendor, operation)
