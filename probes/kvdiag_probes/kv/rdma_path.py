"""KV blocks over verbs: every block a work request, posted in chains, to the buffer of an agent's session."""

import contextlib
import gc
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from kvdiag.errors import UnavailableError
from kvdiag.model.kv_geometry import Block
from kvdiag.model.probe import ProbeEnds, TransportProof
from kvdiag_probes import pattern
from kvdiag_probes import proof as transport_proof
from kvdiag_probes.completion import CompletionError, completion_error, leading
from kvdiag_probes.completion_queue import Completion
from kvdiag_probes.control.address import Address
from kvdiag_probes.control.client import AgentClient
from kvdiag_probes.control.credential import Credential
from kvdiag_probes.control.messages import FillRequest, OpenRequest, QueuePairAddress, VerifyRequest
from kvdiag_probes.datapath import Operation, Transport
from kvdiag_probes.gid import choose
from kvdiag_probes.kv.path import Groups, Timing
from kvdiag_probes.kv.tcp_path import agent_session
from kvdiag_probes.memory import MemoryKind
from kvdiag_probes.narrowing import narrowing
from kvdiag_probes.rdma_path import read_devices

DEPTH, CHAIN = 256, 16
"""Work requests outstanding, and to a post: sixteen chains of sixteen keep any adapter busy."""
MESSAGE_BYTES = 4 << 20
"""Longer blocks go as several messages: rdma_rxe takes at most 8 MiB, others at least 1 GiB."""


class RdmaKvPath:
    """One queue pair, connected; `remote` is the agent's."""

    def __init__(self, endpoint: Any, remote: QueuePairAddress, client: AgentClient, session: str, peer: str) -> None:
        self._endpoint, self._remote = endpoint, remote
        self._client, self._session, self._peer = client, session, peer
        self._before = transport_proof.read_counters(endpoint.choice.device, endpoint.choice.port)
        self._control_before = sum(client.moved_bytes)

    def transfer(self, operation: Operation, groups: Groups, timeout_s: float, repeats: int) -> Timing:
        """Move every group; a chain never crosses from one group to the next."""
        started_s = time.perf_counter()
        chains = [
            self._chain(operation, blocks)
            for group in groups
            for pieces in [_messages(group)]
            for blocks in (pieces[at : at + CHAIN] for at in range(0, len(pieces), CHAIN))
        ]
        build_s = time.perf_counter() - started_s
        collecting = gc.isenabled()
        gc.disable()
        try:
            found = [self._run(operation, chains, build_s, timeout_s) for _ in range(repeats)]
        finally:
            if collecting:
                gc.enable()
            for chain in chains:
                for made in chain:
                    made.close()
        return min(found, key=lambda timing: timing.total_s)

    def fill(self, seed: int, size: int, *, far: bool) -> None:
        if far:
            self._client.fill(self._session, FillRequest(seed=seed, size=size))
        else:
            with self._endpoint.buffer[:size] as view:
                pattern.fill(view, seed)
            self._endpoint.region.push(0, size)

    def digest(self, size: int, *, far: bool) -> str:
        if far:
            return self._client.verify(self._session, VerifyRequest(seed=0, size=size)).digest
        self._endpoint.region.pull(0, size)
        with self._endpoint.buffer[:size] as view:
            return pattern.digest(view)

    def prove(self, moved: Mapping[Operation, int]) -> TransportProof:
        """Compare what the local port counted each way since the path was opened with the payload."""
        choice = self._endpoint.choice
        after = transport_proof.read_counters(choice.device, choice.port)
        objects = transport_proof.read_objects(choice.device)
        control_bytes = sum(self._client.moved_bytes) - self._control_before
        proof = transport_proof.joined(
            [
                transport_proof.named(
                    operation,
                    transport_proof.judge_rdma(
                        operation,
                        payload,
                        self._endpoint.path_mtu,
                        self._endpoint.address.qpn,
                        self._before,
                        after,
                        objects,
                        control_bytes,
                    ),
                )
                for operation, payload in moved.items()
                if payload
            ]
        )
        # Both directions were seen by the same queue pair and control connection: each is said once.
        return replace(proof, evidence=tuple(dict.fromkeys(proof.evidence)))

    def _chain(self, operation: Operation, blocks: Sequence[Block]) -> list[Any]:
        """Return the work requests and, among them, their scatter entries: all must be kept until they are done."""
        import pyverbs.enums as e
        from pyverbs.wr import SGE, SendWR

        writing = operation is Operation.WRITE
        opcode = e.IBV_WR_RDMA_WRITE if writing else e.IBV_WR_RDMA_READ
        requests: list[Any] = []
        entries: list[Any] = []
        for number, block in enumerate(blocks):
            near, far = (block.source, block.target) if writing else (block.target, block.source)
            entry = SGE(self._endpoint.address.address + near, block.length, self._endpoint.mr.lkey)
            flags = e.IBV_SEND_SIGNALED if number == len(blocks) - 1 else 0
            request = SendWR(wr_id=len(blocks), opcode=opcode, num_sge=1, sg=[entry], send_flags=flags)
            request.set_wr_rdma(self._remote.rkey, self._remote.address + far)
            if requests:
                requests[-1].next_wr = request
            requests.append(request)
            entries.append(entry)
        return requests + entries

    def _run(self, operation: Operation, chains: list[list[Any]], build_s: float, timeout_s: float) -> Timing:
        clock, post, poll = time.perf_counter, self._endpoint.qp.post_send, self._endpoint.cq.poll
        waiting = deque((chain[0], len(chain) // 2) for chain in chains)
        left, outstanding, post_s, poll_s = len(chains), 0, 0.0, 0.0
        started_s = now_s = clock()
        deadline_s = started_s + timeout_s
        while left:
            while waiting and outstanding + waiting[0][1] <= DEPTH:
                head, length = waiting.popleft()
                before_s = clock()
                post(head)
                post_s += clock() - before_s
                outstanding += length
            before_s = clock()
            found, completions = poll(CHAIN)
            now_s = clock()
            poll_s += now_s - before_s
            if not found:
                if now_s > deadline_s:
                    raise UnavailableError(f"{self._peer}: no completion within {timeout_s:g} s (--timeout)")
                continue
            deadline_s = now_s + timeout_s
            for completion in completions:
                if completion.status:
                    raise self._failed(operation, completions)
                outstanding -= completion.wr_id
                left -= 1
        return Timing(build_s=build_s, post_s=post_s, wire_s=now_s - started_s - post_s - poll_s, poll_s=poll_s)

    def _failed(self, operation: Operation, completions: Sequence[Completion]) -> CompletionError:
        status = leading(one.status for one in completions) or 0
        vendor = next(one.vendor_err for one in completions if one.status == status)
        return completion_error(f"RDMA {operation.verb}", self._peer, status, vendor=vendor)


@contextlib.contextmanager
def open_rdma(
    peer: Address, credential: Credential, flags: Mapping[str, Any], size: int
) -> Iterator[tuple[RdmaKvPath, ProbeEnds]]:
    """Connect one queue pair to an agent; errors are those of the endpoint and of the client."""
    from kvdiag_probes.verbs import Endpoint, EndpointOptions, preload

    with AgentClient(peer, credential, flags["timeout"]) as client:
        host = client.hello().host
        choice = choose(
            read_devices(),
            device=flags["device"],
            port=flags["port"],
            gid_index=flags["gid_index"],
            addresses=[client.local_address] if client.local_address else [],
        )
        preload()
        options = EndpointOptions(memory=MemoryKind(flags["memory"]))
        with Endpoint(choice, size, DEPTH, options) as endpoint:
            request = OpenRequest(
                transport=Transport.RDMA,
                size=size,
                queue_pair=endpoint.address,
                memory=MemoryKind(flags["peer_memory"]),
            )
            before = transport_proof.read_counters(choice.device, choice.port)
            with narrowing(peer, credential, endpoint, before), agent_session(client, request) as session:
                assert session.queue_pair is not None
                endpoint.connect(session.queue_pair)
                ends = ProbeEnds(
                    peer=str(peer),
                    peer_host=host,
                    local_device=choice.name,
                    peer_device=session.device,
                    path_mtu=endpoint.path_mtu,
                    local_memory=endpoint.region.note,
                    peer_memory=session.memory,
                )
                yield RdmaKvPath(endpoint, session.queue_pair, client, session.session, str(peer)), ends


def _messages(blocks: Sequence[Block]) -> list[Block]:
    return [
        Block(block.source + at, block.target + at, min(MESSAGE_BYTES, block.length - at), block.layer)
        for block in blocks
        for at in range(0, block.length, MESSAGE_BYTES)
    ]
