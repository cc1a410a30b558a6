"""KV blocks over TCP, to the buffer of an agent's session."""

import contextlib
import time
from collections.abc import Iterator, Mapping

from kvdiag.errors import KvdiagError
from kvdiag.model.missing import Missing
from kvdiag.model.probe import ProbeEnds, TransportProof
from kvdiag_probes import pattern
from kvdiag_probes import proof as transport_proof
from kvdiag_probes.control.address import Address
from kvdiag_probes.control.client import AgentClient
from kvdiag_probes.control.credential import Credential
from kvdiag_probes.control.messages import FillRequest, OpenAnswer, OpenRequest, VerifyRequest
from kvdiag_probes.datapath import Operation, Transport
from kvdiag_probes.kv.path import Groups, Timing
from kvdiag_probes.narrowing import narrowing
from kvdiag_probes.tcp import MAX_BLOCKS, Block, TcpInitiator


class TcpKvPath:
    """One data connection; a group is one request for as many blocks as the protocol allows."""

    def __init__(self, initiator: TcpInitiator, client: AgentClient, session: str, size: int) -> None:
        self._initiator, self._client, self._session = initiator, client, session
        self._buffer = memoryview(bytearray(size))

    def transfer(self, operation: Operation, groups: Groups, timeout_s: float, repeats: int) -> Timing:
        """Move every group; posting a WRITE sends its bytes, so `post` holds most of the wire's time."""
        del timeout_s  # the connection has it
        clock = time.perf_counter
        writing = operation is Operation.WRITE
        post = self._initiator.post_write if writing else self._initiator.post_read
        started_s = clock()
        requests: list[list[Block]] = []
        for group in groups:
            blocks = [(b.source, b.target, b.length) if writing else (b.target, b.source, b.length) for b in group]
            requests += [blocks[at : at + MAX_BLOCKS] for at in range(0, len(blocks), MAX_BLOCKS)]
        build_s = clock() - started_s
        found = []
        for _ in range(repeats):
            started_s = clock()
            for request in requests:
                post(request, self._buffer)
            posted_s = clock()
            for _ in requests:
                self._initiator.wait()
            found.append(Timing(build_s=build_s, post_s=posted_s - started_s, wire_s=clock() - posted_s, poll_s=0.0))
        return min(found, key=lambda timing: timing.total_s)

    def fill(self, seed: int, size: int, *, far: bool) -> None:
        if far:
            self._client.fill(self._session, FillRequest(seed=seed, size=size))
        else:
            pattern.fill(self._buffer[:size], seed)

    def digest(self, size: int, *, far: bool) -> str:
        if far:
            return self._client.verify(self._session, VerifyRequest(seed=0, size=size)).digest
        return pattern.digest(self._buffer[:size])

    def prove(self, moved: Mapping[Operation, int]) -> TransportProof:
        """Compare what the data connection moved each way with the payload."""
        sent, received = self._initiator.moved_bytes()
        ways = ((Operation.WRITE, sent), (Operation.READ, received))
        return transport_proof.joined(
            [
                transport_proof.named(operation, transport_proof.judge_tcp(moved[operation], bytes_))
                for operation, bytes_ in ways
                if moved.get(operation)
            ]
        )


@contextlib.contextmanager
def agent_session(client: AgentClient, request: OpenRequest, patience_s: float = 0.0) -> Iterator[OpenAnswer]:
    """Open a session at the agent and close it again; a failure inside is never hidden by one of the closing.

    `patience_s` is how long the opening may take where that is longer than the client's timeout.
    """
    answer = client.open(request, patience_s)
    try:
        yield answer
    except BaseException:
        # The failure is the news; freeing the session early is a courtesy that must neither hide nor delay it.
        with contextlib.suppress(KvdiagError), client.brief() as other:
            other.close_session(answer.session)
        raise
    client.close_session(answer.session)


@contextlib.contextmanager
def open_tcp(
    peer: Address, credential: Credential, timeout_s: float, local_bytes: int, remote_bytes: int
) -> Iterator[tuple[TcpKvPath, ProbeEnds]]:
    """Connect to an agent; errors are those of its client."""
    with AgentClient(peer, credential, timeout_s) as client:
        host = client.hello().host
        request = OpenRequest(transport=Transport.TCP, size=remote_bytes)
        nothing = Missing("TCP has no port")
        with narrowing(peer, credential, None, nothing), agent_session(client, request) as session:
            assert session.tcp_port is not None
            assert session.tcp_key is not None
            key = bytes.fromhex(session.tcp_key)
            with TcpInitiator.connect(peer.host, session.tcp_port, timeout_s, key=key) as initiator:
                ends = ProbeEnds(peer=str(peer), peer_host=host)
                yield TcpKvPath(initiator, client, session.session, local_bytes), ends
