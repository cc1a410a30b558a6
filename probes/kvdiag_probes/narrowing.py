"""What else is known when a probe's transfer fails: this end's symptoms, and what the agent's control port does."""

import contextlib
import socket
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from kvdiag.errors import KvdiagError, UnavailableError
from kvdiag.model.missing import Missing
from kvdiag.model.rdma import PortCounters
from kvdiag_probes.completion import RETRIES_EXCEEDED, CompletionError, ControlState, completion_error
from kvdiag_probes.control.address import Address
from kvdiag_probes.control.client import AgentClient, LostAgentError, RefusedConnectionError
from kvdiag_probes.control.credential import Credential
from kvdiag_probes.datapath import DataPath, Operation
from kvdiag_probes.rdma_path import RdmaPath, inactive_port
from kvdiag_probes.symptoms import symptoms

if TYPE_CHECKING:
    from kvdiag_probes.verbs import Endpoint

CONTROL_TIMEOUT_S = 2.0
_CONTROL_CAUSES = {
    "refuses": "the agent is gone: its control port refuses connections",
    "stuck": "its host takes connections but the agent does not answer: it is stopped, stuck or starved of CPU there",
    "silent": "its host takes no connection either: it is down, or the whole path is cut",
}


def narrowed(
    error: UnavailableError,
    operation: Operation,
    peer: Address,
    path: DataPath,
    before: PortCounters | Missing,
    ask: Callable[[], AgentClient],
) -> UnavailableError:
    """Return the error with its causes narrowed; `before` are the port's counters from before, `ask` opens a client."""
    endpoint = path.endpoint if isinstance(path, RdmaPath) else None
    return explained(error, peer, endpoint, before, ask, f"RDMA {operation.verb}")


@contextlib.contextmanager
def narrowing(
    peer: Address, credential: Credential, endpoint: "Endpoint | None", before: PortCounters | Missing
) -> Iterator[None]:
    """Narrow the causes of whatever becomes unavailable in the block; `endpoint` is this end's, None over TCP."""
    try:
        yield
    except UnavailableError as error:
        raise explained(
            error, peer, endpoint, before, lambda: AgentClient(peer, credential, CONTROL_TIMEOUT_S)
        ) from error


def explained(
    error: UnavailableError,
    peer: Address,
    endpoint: "Endpoint | None",
    before: PortCounters | Missing,
    ask: Callable[[], AgentClient],
    operation: str = "",
) -> UnavailableError:
    """Return the error with what this end shows; of a completion the operation is its own, unless one is given."""
    port = ""
    seen: list[str] = []
    if endpoint is not None:
        choice = endpoint.choice
        port = inactive_port(choice.device, choice.port)
        with contextlib.suppress(Exception):  # of a device that is gone nothing may be seen, in whatever way
            seen = symptoms(endpoint, before, port)
    lost = not isinstance(error, CompletionError) or error.status == RETRIES_EXCEEDED
    control = control_state(peer, ask) if lost and not port else None
    if isinstance(error, CompletionError):
        return completion_error(
            operation or error.operation,
            str(peer),
            error.status,
            vendor=error.vendor,
            local_port=port,
            control=control,
            seen=seen,
        )
    if port:
        return UnavailableError(f"{error}; the local port {port}: check cable, switch port and netdev of this end")
    if control in _CONTROL_CAUSES:
        kind = LostAgentError if isinstance(error, LostAgentError) else UnavailableError
        return kind(f"{error}; {_CONTROL_CAUSES[control]}")
    return error


def control_state(peer: Address, ask: Callable[[], AgentClient]) -> ControlState:
    """Return what the agent's control port does now."""
    try:
        with ask() as client:
            client.hello()
    except RefusedConnectionError:
        return "refuses"
    except KvdiagError:
        return "stuck" if _takes_connections(peer) else "silent"
    return "answers"


def _takes_connections(peer: Address) -> bool:
    """Whether the peer's kernel completes a connection, which it does for a process that is stopped."""
    try:
        socket.create_connection((peer.host, peer.port), CONTROL_TIMEOUT_S).close()
    except OSError:
        return False
    return True
