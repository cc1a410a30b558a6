"""KV blocks through real NIXL: from an agent in a process of its own to another one, here or at a peer, over UCX."""

import base64
import contextlib
import ipaddress
from collections.abc import Iterator, Mapping
from typing import Protocol

import numpy as np

from kvdiag.model.finding import Evidence
from kvdiag.model.probe import ProbeEnds, TransportProof
from kvdiag_probes.control.address import Address
from kvdiag_probes.control.client import AgentClient
from kvdiag_probes.control.credential import Credential
from kvdiag_probes.control.messages import FillRequest, OpenRequest, ServeRequest, VerifyRequest
from kvdiag_probes.datapath import Operation, Transport
from kvdiag_probes.kv.nixl_child import SPARE_S, NixlChild
from kvdiag_probes.kv.path import Groups, Timing
from kvdiag_probes.kv.tcp_path import agent_session
from kvdiag_probes.proof import carried_by_ports, read_all_counters

_OPEN_S = 60.0
"""Starting an agent imports NIXL and opens every UCX device: longer than a control message may take."""


class _Far(Protocol):
    def serve(self, seconds: float) -> None: ...

    def fill(self, seed: int, size: int) -> None: ...

    def digest(self, size: int) -> str: ...


class _HereFar:
    """The target in a process of this host."""

    def __init__(self, child: NixlChild) -> None:
        self._child = child

    def serve(self, seconds: float) -> None:
        self._child.call("serve", seconds)

    def fill(self, seed: int, size: int) -> None:
        self._child.call("fill", seed, size)

    def digest(self, size: int) -> str:
        return str(self._child.call("digest", size))


class _PeerFar:
    """The target behind an agent."""

    def __init__(self, client: AgentClient, session: str) -> None:
        self._client, self._session = client, session

    def serve(self, seconds: float) -> None:
        self._client.serve(self._session, ServeRequest(seconds=seconds))

    def fill(self, seed: int, size: int) -> None:
        self._client.fill(self._session, FillRequest(seed=seed, size=size))

    def digest(self, size: int) -> str:
        return self._client.verify(self._session, VerifyRequest(seed=0, size=size)).digest


class NixlKvPath:
    """Two agents, connected."""

    def __init__(self, near: NixlChild, far: _Far) -> None:
        self._near, self._far = near, far
        self._before = read_all_counters()

    def transfer(self, operation: Operation, groups: Groups, timeout_s: float, repeats: int) -> Timing:
        writing = operation is Operation.WRITE
        rows = [
            np.array([(b.source, b.target, b.length) if writing else (b.target, b.source, b.length) for b in group])
            .reshape(-1, 3)
            .astype(np.uint64)
            for group in groups
        ]
        limit_s = repeats * timeout_s + SPARE_S
        # Where it fails the session ends, and the far process with it.
        self._far.serve(min(limit_s, 3600.0))
        timing: Timing = self._near.call("transfer", str(operation), rows, timeout_s, repeats, limit_s=limit_s)
        self._far.serve(0.0)
        return timing

    def fill(self, seed: int, size: int, *, far: bool) -> None:
        if far:
            self._far.fill(seed, size)
        else:
            self._near.call("fill", seed, size)

    def digest(self, size: int, *, far: bool) -> str:
        return self._far.digest(size) if far else str(self._near.call("digest", size))

    def prove(self, moved: Mapping[Operation, int]) -> TransportProof:
        """Compare what the initiator's TCP connections moved with the payload, or what this host's RDMA ports did."""
        transports, sent, received = self._near.call("sockets")
        payloads = {operation: moved.get(operation, 0) for operation in (Operation.WRITE, Operation.READ)}
        pushed, pulled = payloads.values()
        enough = sent >= pushed and received >= pulled
        only_tcp = transports == "tcp"
        names = ("acknowledged", "received")
        evidence = tuple(
            Evidence(
                name=f"bytes {name} on the TCP connections of the NIXL process",
                value=str(value),
                source="TCP_INFO",
                threshold=f">= {payload}",
            )
            for name, value, payload in zip(names, (sent, received), (pushed, pulled), strict=True)
            if payload
        )
        if not enough and not only_tcp:
            after = read_all_counters()
            ways = [carried_by_ports(way, payload, self._before, after) for way, payload in payloads.items() if payload]
            enough = all(carried for carried, _ in ways)
            evidence += tuple(item for _, found in ways for item in found)
        return TransportProof(
            status="proved" if enough else "contradicted" if only_tcp else "not_observable",
            payload_bytes=pushed + pulled,
            evidence=evidence,
            missing=()
            if enough or only_tcp
            else (
                f"UCX_TLS={transports} lets UCX move bytes past the TCP connections of its process and the RDMA ports "
                "here, where the kernel counts none",
            ),
        )


@contextlib.contextmanager
def open_nixl(size: int) -> Iterator[NixlKvPath]:
    """Start both agents on this host; UndeterminedError where NIXL is not installed or does not load."""
    with contextlib.ExitStack() as stack:
        children = []
        for name in ("initiator", "target"):
            children.append(NixlChild(name, size, loopback=True))
            stack.callback(children[-1].close)
        for child in children:
            child.ready()
        near, far = children
        far.call("connect", *near.call("endpoint"))
        near.call("connect", *far.call("endpoint"))
        yield NixlKvPath(near, _HereFar(far))


@contextlib.contextmanager
def open_nixl_peer(
    peer: Address, credential: Credential, timeout_s: float, size: int
) -> Iterator[tuple[NixlKvPath, ProbeEnds]]:
    """Start an agent here, and have a `kvdiag agent` start the other; they exchange metadata over its control channel.

    UndeterminedError where NIXL is missing at either end; UnavailableError where the agent does not answer.
    """
    with contextlib.ExitStack() as stack:
        client = stack.enter_context(AgentClient(peer, credential, timeout_s))
        host = client.hello().host
        local = ipaddress.ip_address(client.local_address or "::1")
        near = NixlChild("initiator", size, loopback=local.is_loopback)
        stack.callback(near.close)
        near.ready()
        metadata, _ = near.call("endpoint")
        request = OpenRequest(transport=Transport.NIXL, size=size, nixl_metadata=base64.b64encode(metadata).decode())
        session = stack.enter_context(agent_session(client, request, _OPEN_S))
        assert session.nixl_metadata is not None
        assert session.nixl_address is not None
        near.call("connect", base64.b64decode(session.nixl_metadata), int(session.nixl_address))
        yield NixlKvPath(near, _PeerFar(client, session.session)), ProbeEnds(peer=str(peer), peer_host=host)
