"""One probe from connect to clean-up: control channel, data path, measurement, proof."""

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NoReturn

import kvdiag_probes.proof as transport_proof
from kvdiag.errors import KvdiagError, UnavailableError, UsageError
from kvdiag.model.missing import Missing
from kvdiag.model.probe import OrderingCheck, ProbeDurations, ProbeEnds, ProbeSettings, SizeResult, TransportProof
from kvdiag.model.rdma import PortCounters
from kvdiag_probes import tracing
from kvdiag_probes.completion import RETRIES_EXCEEDED, CompletionError, ControlState, completion_error
from kvdiag_probes.control.address import Address
from kvdiag_probes.control.client import AgentClient, RefusedConnectionError
from kvdiag_probes.control.credential import Credential
from kvdiag_probes.control.messages import OpenAnswer, OpenRequest
from kvdiag_probes.datapath import DataPath, Operation, Transport, chain_length, slot_count
from kvdiag_probes.distribution import Samples
from kvdiag_probes.far import Far
from kvdiag_probes.injection import Injection, corruption
from kvdiag_probes.measure import Amount, Posting, Reverse, Runner
from kvdiag_probes.memory import MemoryKind
from kvdiag_probes.rails import RailOptions, Rails, open_rails
from kvdiag_probes.rdma_path import RdmaPath, inactive_port
from kvdiag_probes.tcp_path import TcpPath

_CLEAN_UP_TIMEOUT_S = 2.0
_FLAG_AREA_BYTES = 64
_HOST_KINDS = (MemoryKind.HOST, MemoryKind.THP, MemoryKind.HUGE)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeOptions:
    """What to do; device, port and GID index restrict the automatic choice. `inject` provokes a failure, for tests.

    `device` may name several, separated by commas: each is a rail that carries all messages. `samples` keeps the raw
    latencies of every size. `opened` is told each session that the agent opened, whatever becomes of it.
    """

    peer: Address
    credential: Credential
    settings: ProbeSettings
    timeout_s: float
    device: str | None = None
    port: int | None = None
    gid_index: int | None = None
    inject: Injection | None = None
    samples: bool = False
    progress: Callable[[str], None] = lambda _: None
    opened: Callable[[OpenAnswer], None] = lambda _: None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeResult:
    ends: ProbeEnds
    durations: ProbeDurations
    results: tuple[SizeResult, ...]
    proof: TransportProof
    ordering: OrderingCheck | None = None
    samples: dict[int, Samples] = field(default_factory=dict)


def run_probe(options: ProbeOptions) -> ProbeResult:
    """Measure every size; any failure is a KvdiagError of one line, and leaves nothing behind at this end.

    What the peer holds is freed at once where it still answers, else when it finds the session idle.
    """
    _check(options.settings)
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


def _check(settings: ProbeSettings) -> None:
    operation = Operation(settings.operation)
    if settings.transport == "tcp":
        plain = (operation is not Operation.WRITE_IMM, settings.queue_pairs == 1, not settings.bidirectional)
        if not all((*plain, not settings.ordering_rounds, not settings.inline, settings.memory == "host")):
            raise UsageError(
                "--op write-imm, --qps, --bidirectional, --inline, --memory and --check-ordering are for "
                "--transport rdma"
            )
        return
    kinds = {MemoryKind(settings.memory), MemoryKind(settings.peer_memory)}
    if (settings.bidirectional or settings.ordering_rounds) and not kinds <= set(_HOST_KINDS):
        raise UsageError("--bidirectional and --check-ordering poll on flags: they need --memory host, thp or huge")
    if settings.ordering_rounds and not operation.pushes:
        raise UsageError("--check-ordering writes flags: it needs --op write or write-imm")
    for size in settings.sizes:
        batch = settings.batch or chain_length(size, settings.queue_depth)
        signal = settings.signal_every or batch
        if batch > settings.queue_depth or signal - 1 + batch > settings.queue_depth:
            raise UsageError(
                f"--batch {batch} with --signal-every {signal} could fill --queue-depth {settings.queue_depth} with "
                "messages that nothing completes: their sum may exceed it by one at most"
            )


@dataclass(slots=True, kw_only=True)
class _Link:
    path: DataPath
    session: OpenAnswer
    connect_s: float
    rails: Rails | None = None


@contextlib.contextmanager
def _open_rdma(options: ProbeOptions, client: AgentClient, size: int) -> Iterator[_Link]:
    settings = options.settings
    operation = Operation(settings.operation)
    receives = 0
    if operation is Operation.WRITE_IMM:
        receives = max(_slots(settings, one) for one in settings.sizes)
    wanted = RailOptions(
        peer=str(options.peer),
        size=size,
        queue_depth=settings.queue_depth,
        operation=operation,
        devices=options.device.split(",") if options.device else (None,),
        port=options.port,
        gid_index=options.gid_index,
        queue_pairs=settings.queue_pairs,
        inline=settings.inline,
        receives=receives,
        memory=MemoryKind(settings.memory),
        peer_memory=MemoryKind(settings.peer_memory),
        relaxed_ordering=settings.relaxed_ordering,
        inject=options.inject,
    )
    if settings.bidirectional and len(wanted.devices) > 1:
        raise UsageError("--bidirectional takes one --device: run a probe for each")
    with open_rails(wanted, client, lambda request: _session(options, client, request)) as rails:
        yield _Link(path=rails.path, session=rails.sessions[0], connect_s=rails.connect_s, rails=rails)


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
    options.opened(session)
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
    samples: dict[int, Samples] = {}
    runner = _runner(options, client, link, samples if options.samples else None)
    amount = Amount(iterations=settings.iterations, duration_s=settings.duration_s, warmup=settings.warmup)
    prover = _Prover(client, link.path, runner.operation)
    ordering = None
    try:
        first_transfer_s = runner.first(settings.sizes[0])
        prover.note_objects()
        if settings.ordering_rounds:
            ordering = runner.check_ordering(max(settings.sizes), settings.ordering_rounds, _flag_offset(settings))
        results = tuple(runner.measure(size, amount) for size in settings.sizes)
    except UnavailableError as error:
        _raise_narrowed(error, options, link.path, prover)
    endpoint = link.path.endpoint if isinstance(link.path, RdmaPath) else None
    return ProbeResult(
        ends=_ends(options, peer_host, link),
        durations=ProbeDurations(
            connect_s=link.connect_s,
            register_s=endpoint.register_s if endpoint else None,
            peer_register_s=link.session.register_s if endpoint else None,
            first_transfer_s=first_transfer_s,
            steady_transfer_s=sum(result.seconds for result in results),
        ),
        results=results,
        proof=prover.prove(runner.moved_bytes),
        ordering=ordering,
        samples=samples,
    )


def _runner(options: ProbeOptions, client: AgentClient, link: _Link, samples: dict[int, Samples] | None) -> Runner:
    settings = options.settings
    reverse = None
    others: list[tuple[RdmaPath, Far]] = []
    if link.rails:
        others = [
            (path, Far(client, session.session))
            for path, session in zip(link.rails.path.rails, link.rails.sessions[1:], strict=True)
        ]
        if settings.bidirectional:
            reverse = Reverse(
                base=_half_bytes(settings),
                flag_offset=_flag_offset(settings),
                receives=link.rails.path.endpoint.receiver,
            )
    return Runner(
        path=tracing.traced(link.path),
        far=Far(client, link.session.session),
        peer=str(options.peer),
        operation=Operation(settings.operation),
        queue_depth=settings.queue_depth,
        timeout_s=options.timeout_s,
        posting=Posting(batch=settings.batch, signal=settings.signal_every, inline=settings.inline),
        rails=others,
        reverse=reverse,
        corrupt=corruption(options.inject),
        progress=options.progress,
        samples=samples,
        receive=options.inject != "no-receive",
    )


def _ends(options: ProbeOptions, peer_host: str, link: _Link) -> ProbeEnds:
    if link.rails is None:
        return ProbeEnds(peer=str(options.peer), peer_host=peer_host)
    endpoint = link.rails.path.endpoint
    return ProbeEnds(
        peer=str(options.peer),
        peer_host=peer_host,
        local_device=endpoint.choice.name,
        peer_device=link.session.device,
        path_mtu=endpoint.path_mtu,
        local_memory=endpoint.region.note,
        peer_memory=link.session.memory,
        rails=tuple(
            f"{path.endpoint.choice.name} -> {session.device}"
            for path, session in zip(link.rails.path.rails, link.rails.sessions[1:], strict=True)
        ),
        pinning=link.rails.pinning,
        completion_timestamps=endpoint.timestamps(),
    )


class _Prover:
    """Takes the counts before, and compares them afterwards."""

    def __init__(self, client: AgentClient, path: DataPath, operation: Operation) -> None:
        self._client = client
        self._path = path
        self._operation = operation
        rails = [path, *path.rails] if isinstance(path, RdmaPath) else []
        self._rails = [(rail.endpoint, _counters(rail)) for rail in rails]
        self._control_before = sum(client.moved_bytes)

    @property
    def before(self) -> PortCounters | Missing:
        """The first rail's counters before the probe."""
        return self._rails[0][1] if self._rails else Missing("no RDMA port was used")

    def note_objects(self) -> None:
        self._during = [transport_proof.read_objects(endpoint.choice.device) for endpoint, _ in self._rails]

    def prove(self, payload: int) -> TransportProof:
        if isinstance(self._path, TcpPath):
            sent, received = self._path.moved_bytes
            return transport_proof.judge_tcp(payload, sent if self._operation.pushes else received)
        control_bytes = sum(self._client.moved_bytes) - self._control_before
        return transport_proof.joined(
            [
                transport_proof.judge_rdma(
                    self._operation,
                    payload,
                    endpoint.path_mtu,
                    endpoint.address.qpn,
                    before,
                    transport_proof.read_counters(endpoint.choice.device, endpoint.choice.port),
                    during,
                    control_bytes,
                )
                for (endpoint, before), during in zip(self._rails, self._during, strict=True)
            ]
        )


def _counters(rail: RdmaPath) -> PortCounters | Missing:
    return transport_proof.read_counters(rail.endpoint.choice.device, rail.endpoint.choice.port)


def _raise_narrowed(error: UnavailableError, options: ProbeOptions, path: DataPath, prover: _Prover) -> NoReturn:
    """Raise the error with what else is known: the local end's symptoms, and whether the agent still answers."""
    port = ""
    seen: list[str] = []
    if isinstance(path, RdmaPath):
        from kvdiag_probes.symptoms import symptoms

        choice = path.endpoint.choice
        port = inactive_port(choice.device, choice.port)
        with contextlib.suppress(Exception):  # of a device that is gone nothing may be seen, in whatever way
            seen = symptoms(path.endpoint, prover.before, port)
    lost = not isinstance(error, CompletionError) or error.status == RETRIES_EXCEEDED
    control = _control_state(options) if lost and not port else None
    if isinstance(error, CompletionError):
        raise completion_error(
            f"RDMA {Operation(options.settings.operation).verb}",
            str(options.peer),
            error.status,
            vendor=error.vendor,
            local_port=port,
            control=control,
            seen=seen,
        ) from error
    if port:
        raise UnavailableError(f"{error}; the local port {port}: check cable, switch port and netdev of this end")
    if control == "refuses":
        raise UnavailableError(f"{error}; the agent is gone: its control port refuses connections, restart it")
    raise error


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
    flags = _FLAG_AREA_BYTES if settings.bidirectional or settings.ordering_rounds else 0
    return _flag_offset(settings) + flags if flags else _half_bytes(settings)


def _flag_offset(settings: ProbeSettings) -> int:
    return _half_bytes(settings) * (2 if settings.bidirectional else 1)


def _half_bytes(settings: ProbeSettings) -> int:
    """Return the bytes of one direction's buffer, whole cache lines where another one or a flag follows."""
    most = max(size * _slots(settings, size) for size in settings.sizes)
    alone = not (settings.bidirectional or settings.ordering_rounds)
    return most if alone else -(-most // _FLAG_AREA_BYTES) * _FLAG_AREA_BYTES


def _slots(settings: ProbeSettings, size: int) -> int:
    return slot_count(size, settings.queue_depth, settings.iterations or 1 << 30)
