"""One probe from connect to clean-up: control channel, data path, measurement, proof."""

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import msgspec

import kvdiag_probes.proof as transport_proof
from kvdiag.errors import KvdiagError, UnavailableError, UsageError
from kvdiag.model.probe import ProbeDurations, ProbeEnds, ProbeSettings, SizeResult, TransportProof
from kvdiag_probes.completion import RETRIES_EXCEEDED, CompletionError, ControlState, completion_error
from kvdiag_probes.control.address import Address
from kvdiag_probes.control.client import AgentClient, RefusedConnectionError
from kvdiag_probes.control.credential import Credential
from kvdiag_probes.control.messages import FillRequest, OpenAnswer, OpenRequest, VerifyRequest
from kvdiag_probes.datapath import DataPath, Operation, Transport, slot_count
from kvdiag_probes.gid import choose
from kvdiag_probes.measure import Amount, Runner
from kvdiag_probes.rdma_path import RdmaPath, inactive_port, read_devices
from kvdiag_probes.tcp_path import TcpPath

_CLEAN_UP_TIMEOUT_S = 2.0
Injection = Literal["wrong-rkey", "out-of-range", "corrupt"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeOptions:
    """What to do; device, port and GID index restrict the automatic choice. `inject` provokes a failure, for tests."""

    peer: Address
    credential: Credential
    settings: ProbeSettings
    timeout_s: float
    device: str | None = None
    port: int | None = None
    gid_index: int | None = None
    inject: Injection | None = None
    progress: Callable[[str], None] = lambda _: None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeResult:
    ends: ProbeEnds
    durations: ProbeDurations
    results: tuple[SizeResult, ...]
    proof: TransportProof


def run_probe(options: ProbeOptions) -> ProbeResult:
    """Measure every size; any failure is a KvdiagError of one line, and leaves nothing behind at this end.

    What the peer holds is freed at once where it still answers, else when it finds the session idle.
    """
    with AgentClient(options.peer, options.credential, options.timeout_s) as client:
        hello = client.hello()
        size = _buffer_bytes(options.settings)
        if size > hello.max_buffer_bytes:
            raise UsageError(
                f"--size/--queue-depth: need a buffer of {size} bytes, {options.peer} allows {hello.max_buffer_bytes}"
            )
        opened = _open_rdma if options.settings.transport == "rdma" else _open_tcp
        with opened(options, client, size) as link:
            return _measure(options, client, hello.host, link)


@dataclass(slots=True, kw_only=True)
class _Link:
    path: DataPath
    session: OpenAnswer
    connect_s: float


@dataclass(frozen=True, slots=True)
class _Far:
    client: AgentClient
    session: str

    def fill(self, seed: int, size: int) -> None:
        self.client.fill(self.session, FillRequest(seed=seed, size=size))

    def verify(self, seed: int, size: int) -> tuple[str, str | None]:
        answer = self.client.verify(self.session, VerifyRequest(seed=seed, size=size))
        return answer.digest, answer.mismatch


@contextlib.contextmanager
def _open_rdma(options: ProbeOptions, client: AgentClient, size: int) -> Iterator[_Link]:
    from kvdiag_probes.verbs import Endpoint, preload

    choice = choose(
        read_devices(),
        device=options.device,
        port=options.port,
        gid_index=options.gid_index,
        addresses=[client.local_address] if client.local_address else [],
    )
    preload()
    started_s = time.perf_counter()
    with Endpoint(choice, size, options.settings.queue_depth) as endpoint:
        request = OpenRequest(transport=Transport.RDMA, size=size, queue_pair=endpoint.address)
        with _session(options, client, request) as session:
            assert session.queue_pair is not None
            endpoint.connect(session.queue_pair)
            memory_s = endpoint.allocate_s + endpoint.register_s + session.allocate_s + session.register_s
            connect_s = time.perf_counter() - started_s - memory_s
            remote = session.queue_pair
            if options.inject == "wrong-rkey":
                remote = msgspec.structs.replace(remote, rkey=remote.rkey ^ 0x0F00FF00)
            if options.inject == "out-of-range":
                remote = msgspec.structs.replace(remote, address_text=str(remote.address + size))
            yield _Link(path=RdmaPath(endpoint, remote, str(options.peer)), session=session, connect_s=connect_s)


@contextlib.contextmanager
def _open_tcp(options: ProbeOptions, client: AgentClient, size: int) -> Iterator[_Link]:
    if options.device or options.port or options.gid_index is not None:
        raise UsageError("--device, --port and --gid-index choose an RDMA port: leave them out with --transport tcp")
    started_s = time.perf_counter()
    with _session(options, client, OpenRequest(transport=Transport.TCP, size=size)) as session:
        assert session.tcp_port is not None
        assert session.tcp_key is not None
        key = bytes.fromhex(session.tcp_key)
        path = TcpPath(options.peer.host, session.tcp_port, key, size, options.timeout_s)
        with contextlib.closing(path):
            yield _Link(path=path, session=session, connect_s=time.perf_counter() - started_s)


@contextlib.contextmanager
def _session(options: ProbeOptions, client: AgentClient, request: OpenRequest) -> Iterator[OpenAnswer]:
    session = client.open(request)
    try:
        yield session
    except BaseException:
        # The failure is the news; freeing the session early is a courtesy that must neither hide nor delay it.
        with contextlib.suppress(KvdiagError), _second_client(options) as other:
            other.close_session(session.session)
        raise
    client.close_session(session.session)


def _measure(options: ProbeOptions, client: AgentClient, peer_host: str, link: _Link) -> ProbeResult:
    settings = options.settings
    operation = Operation(settings.operation)
    runner = Runner(
        path=link.path,
        far=_Far(client, link.session.session),
        peer=str(options.peer),
        operation=operation,
        queue_depth=settings.queue_depth,
        timeout_s=options.timeout_s,
        corrupt=_flip if options.inject == "corrupt" else None,
        progress=options.progress,
    )
    amount = Amount(iterations=settings.iterations, duration_s=settings.duration_s, warmup=settings.warmup)
    prover = _Prover(client, link.path, operation)
    try:
        first_transfer_s = runner.first(settings.sizes[0])
        prover.note_objects()
        results = tuple(runner.measure(size, amount) for size in settings.sizes)
    except UnavailableError as error:
        raise _narrowed(error, options, link.path) from error
    endpoint = link.path.endpoint if isinstance(link.path, RdmaPath) else None
    return ProbeResult(
        ends=ProbeEnds(
            peer=str(options.peer),
            peer_host=peer_host,
            local_device=endpoint.choice.name if endpoint else None,
            peer_device=link.session.device,
            path_mtu=endpoint.path_mtu if endpoint else None,
        ),
        durations=ProbeDurations(
            connect_s=link.connect_s,
            register_s=endpoint.register_s if endpoint else None,
            peer_register_s=link.session.register_s if endpoint else None,
            first_transfer_s=first_transfer_s,
            steady_transfer_s=sum(result.seconds for result in results),
        ),
        results=results,
        proof=prover.prove(runner.moved_bytes),
    )


class _Prover:
    """Takes the counts before, and compares them afterwards."""

    def __init__(self, client: AgentClient, path: DataPath, operation: Operation) -> None:
        self._client = client
        self._path = path
        self._operation = operation
        if isinstance(path, RdmaPath):
            choice = path.endpoint.choice
            self._before = transport_proof.read_counters(choice.device, choice.port)
        self._control_before = sum(client.moved_bytes)

    def note_objects(self) -> None:
        if isinstance(self._path, RdmaPath):
            self._during = transport_proof.read_objects(self._path.endpoint.choice.device)

    def prove(self, payload: int) -> TransportProof:
        if isinstance(self._path, TcpPath):
            sent, received = self._path.moved_bytes
            return transport_proof.judge_tcp(payload, sent if self._operation == Operation.WRITE else received)
        assert isinstance(self._path, RdmaPath)
        endpoint = self._path.endpoint
        return transport_proof.judge_rdma(
            self._operation,
            payload,
            endpoint.path_mtu,
            endpoint.address.qpn,
            self._before,
            transport_proof.read_counters(endpoint.choice.device, endpoint.choice.port),
            self._during,
            sum(self._client.moved_bytes) - self._control_before,
        )


def _narrowed(error: UnavailableError, options: ProbeOptions, path: DataPath) -> UnavailableError:
    """Return the error with its causes narrowed by the local port's state, and by whether the agent still answers."""
    if isinstance(error, CompletionError) and error.status != RETRIES_EXCEEDED:
        return error
    port = ""
    if isinstance(path, RdmaPath):
        choice = path.endpoint.choice
        port = inactive_port(choice.device, choice.port)
    control = None if port else _control_state(options)
    if isinstance(error, CompletionError):
        operation = f"RDMA {options.settings.operation.upper()}"
        return completion_error(operation, str(options.peer), error.status, local_port=port, control=control)
    if port:
        return UnavailableError(f"{error}; the local port {port}: check cable, switch port and netdev of this end")
    if control == "refuses":
        return UnavailableError(f"{error}; the agent is gone: its control port refuses connections, restart it")
    return error


def _control_state(options: ProbeOptions) -> ControlState:
    try:
        with _second_client(options) as client:
            client.hello()
    except RefusedConnectionError:
        return "refuses"
    except KvdiagError:
        return "silent"
    return "answers"


def _second_client(options: ProbeOptions) -> AgentClient:
    return AgentClient(options.peer, options.credential, min(options.timeout_s, _CLEAN_UP_TIMEOUT_S))


def _buffer_bytes(settings: ProbeSettings) -> int:
    messages = settings.iterations or 1 << 30
    return max(size * slot_count(size, settings.queue_depth, messages) for size in settings.sizes)


def _flip(buffer: memoryview) -> None:
    middle = len(buffer) // 2
    for offset in range(middle, min(middle + 3, len(buffer))):
        buffer[offset] ^= 0xFF
