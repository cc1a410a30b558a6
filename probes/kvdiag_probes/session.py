"""One probe from connect to clean-up: control channel, data path, measurement, proof.

The stages of its time: `control` (the control channel's connection and requests, but for what follows), `load`
(importing pyverbs), `discover` (reading this host's devices and GIDs), `connect` (queue pairs at this end and their way
to RTS; TCP's connection), `allocate` and `register` (this end's buffer), `peer_discover`, `peer_allocate`,
`peer_register` and `peer_connect` (the same at the agent, by its own clock, taken out of `control`), `prepare` (work
requests), `first_transfer`, `warmup`, `ordering`, `transfer` (between first post and last completion), `budget` (rests
that --budget asks for), `verify` (patterns written and compared at both ends), `prove` (counters and RDMA objects),
`close` (everything freed at both ends) and `other`.
"""

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from kvdiag.errors import KvdiagError, StoppedError, UnavailableError, UsageError
from kvdiag.model.probe import (
    OrderingCheck,
    PortErrors,
    ProbeDurations,
    ProbeEnds,
    ProbeSettings,
    SizeResult,
    TransportProof,
)
from kvdiag_probes import tracing
from kvdiag_probes.control.address import Address
from kvdiag_probes.control.client import AgentClient
from kvdiag_probes.control.credential import Credential
from kvdiag_probes.control.messages import OpenAnswer, OpenRequest
from kvdiag_probes.datapath import DataPath, Operation, Transport, chain_length, slot_count
from kvdiag_probes.distribution import Samples
from kvdiag_probes.errors import PayloadMismatchError
from kvdiag_probes.far import Far
from kvdiag_probes.injection import Injection, corruption
from kvdiag_probes.measure import Amount, Posting, Reverse, Runner
from kvdiag_probes.memory import MemoryKind
from kvdiag_probes.narrowing import CONTROL_TIMEOUT_S, narrowed
from kvdiag_probes.prover import Prover
from kvdiag_probes.rails import RailOptions, Rails, open_rails
from kvdiag_probes.rdma_path import RdmaPath
from kvdiag_probes.stages import REST, Stages
from kvdiag_probes.tcp_path import TcpPath

_FLAG_AREA_BYTES = 64
_HOST_KINDS = (MemoryKind.HOST, MemoryKind.THP, MemoryKind.HUGE)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeOptions:
    """What to do; device, port and GID index restrict the automatic choice. `inject` provokes a failure, for tests.

    `device` may name several, separated by commas: each is a rail that carries all messages. `samples` keeps the raw
    latencies of every size. `opened` is told each session that the agent opened, whatever becomes of it; `partial` gets
    what was measured before a run fails, if anything was.
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
    partial: "Callable[[ProbeResult], None]" = lambda _: None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeResult:
    ends: ProbeEnds
    durations: ProbeDurations
    results: tuple[SizeResult, ...]
    proof: TransportProof
    ordering: OrderingCheck | None = None
    port_errors: tuple[PortErrors, ...] = ()
    samples: dict[int, Samples] = field(default_factory=dict)
    failure: str | None = None


def run_probe(options: ProbeOptions) -> ProbeResult:
    """Measure every size; any failure is a KvdiagError of one line, and leaves nothing behind at this end.

    What the peer holds is freed at once where it still answers, else when it finds the session idle.
    """
    _check(options.settings)
    stages = Stages()
    result = _run(options, stages)
    times = stages.times()
    return replace(result, durations=replace(result.durations, total_s=stages.total_s, stages=times))


def _run(options: ProbeOptions, stages: Stages) -> ProbeResult:
    with stages.stage("control"):
        channel = AgentClient(options.peer, options.credential, options.timeout_s)
    with channel as client:
        with stages.stage("control"):
            hello = client.hello()
        size = _buffer_bytes(options.settings)
        if size > hello.max_buffer_bytes:
            raise UsageError(_too_large(options.settings, str(options.peer), hello.max_buffer_bytes))
        opened = _open_rdma if options.settings.transport == "rdma" else _open_tcp
        with opened(options, client, size, stages) as link:
            return _measure(options, client, hello.host, link, stages)


def _too_large(settings: ProbeSettings, peer: str, allowed: int) -> str:
    """Say that an agent gives less memory than a probe needs, and what would fit, a queue depth if one does."""
    depths = range(settings.queue_depth - 1, 0, -1)
    fits = next((depth for depth in depths if _buffer_bytes(replace(settings, queue_depth=depth)) <= allowed), None)
    less = f"--queue-depth {fits} fits" if fits else "give a smaller --size"
    return (
        f"--size/--queue-depth: need a buffer of {_buffer_bytes(settings)} bytes, {peer} allows {allowed}: {less}, or "
        "start the agent with a larger --max-buffer"
    )


def _only_rdma(settings: ProbeSettings) -> list[str]:
    """Return the flags given that TCP knows nothing of."""
    given = {
        "--op write-imm": settings.operation == "write-imm",
        "--qps": settings.queue_pairs != 1,
        "--bidirectional": settings.bidirectional,
        "--ping-pong": settings.ping_pong,
        "--batch": settings.batch is not None,
        "--signal-every": settings.signal_every is not None,
        "--inline": settings.inline,
        "--memory": settings.memory != "host",
        "--peer-memory": settings.memory == "host" != settings.peer_memory,
        "--relaxed-ordering": settings.relaxed_ordering,
        "--check-ordering": settings.ordering_rounds,
    }
    return [flag for flag, is_given in given.items() if is_given]


def _them(flags: list[str]) -> str:
    return "them" if flags[1:] else "it"


def _check(settings: ProbeSettings) -> None:
    operation = Operation(settings.operation)
    if settings.transport == "tcp":
        if flags := _only_rdma(settings):
            raise UsageError(f"{', '.join(flags)}: only for --transport rdma; with tcp leave {_them(flags)} out")
        return
    kinds = {MemoryKind(settings.memory), MemoryKind(settings.peer_memory)}
    polling = {
        "--bidirectional": settings.bidirectional,
        "--ping-pong": settings.ping_pong,
        "--check-ordering": settings.ordering_rounds,
    }
    if any(polling.values()) and not kinds <= set(_HOST_KINDS):
        flags = [flag for flag, is_given in polling.items() if is_given]
        raise UsageError(f"{', '.join(flags)}: polls on memory, which needs --memory host, thp or huge")
    if settings.ping_pong and operation is not Operation.WRITE:
        raise UsageError("--ping-pong answers each WRITE with a WRITE: it needs --op write")
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
def _open_rdma(options: ProbeOptions, client: AgentClient, size: int, stages: Stages) -> Iterator[_Link]:
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
        stages=stages,
    )
    if _both_ways(settings) and len(wanted.devices) > 1:
        raise UsageError("--bidirectional and --ping-pong take one --device: run a probe for each")
    with open_rails(wanted, client, lambda request: _session(options, client, request)) as rails:
        yield _Link(path=rails.path, session=rails.sessions[0], connect_s=rails.connect_s, rails=rails)


@contextlib.contextmanager
def _open_tcp(options: ProbeOptions, client: AgentClient, size: int, stages: Stages) -> Iterator[_Link]:
    started_s = time.perf_counter()
    with stages.stage("close"), contextlib.ExitStack() as stack:
        with stages.stage("control"):
            request = OpenRequest(transport=Transport.TCP, size=size)
            session = stack.enter_context(_session(options, client, request))
        assert session.tcp_port is not None
        assert session.tcp_key is not None
        with stages.stage("connect"):
            key = bytes.fromhex(session.tcp_key)
            path = TcpPath(options.peer.host, session.tcp_port, key, size, options.timeout_s)
            stack.callback(path.close)
        with stages.stage(REST):
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


def _measure(options: ProbeOptions, client: AgentClient, peer_host: str, link: _Link, stages: Stages) -> ProbeResult:
    settings = options.settings
    samples: dict[int, Samples] = {}
    runner = _runner(options, client, link, samples if options.samples else None)
    runner.stages = stages
    amount = Amount(iterations=settings.iterations, duration_s=settings.duration_s, warmup=settings.warmup)
    with stages.stage("prove"):
        prover = Prover(client, link.path, runner.operation)
    endpoint = link.path.endpoint if isinstance(link.path, RdmaPath) else None
    ordering = None
    results: list[SizeResult] = []
    first_transfer_s = 0.0

    def result(proof: TransportProof, errors: tuple[PortErrors, ...], failure: str | None = None) -> ProbeResult:
        times = stages.times()
        return ProbeResult(
            ends=_ends(options, peer_host, link),
            durations=ProbeDurations(
                connect_s=link.connect_s,
                register_s=endpoint.register_s if endpoint else None,
                peer_register_s=link.session.register_s if endpoint else None,
                first_transfer_s=first_transfer_s,
                steady_transfer_s=sum(one.seconds for one in results),
                total_s=stages.total_s,
                stages=times,
            ),
            results=tuple(results),
            proof=proof,
            port_errors=errors,
            ordering=ordering,
            samples=samples,
            failure=failure,
        )

    try:
        first_transfer_s = runner.first(settings.sizes[0])
        with stages.stage("prove"):
            prover.note_objects()
        if settings.ordering_rounds:
            ordering = runner.check_ordering(max(settings.sizes), settings.ordering_rounds, _flag_offset(settings))
        results.extend(runner.measure(size, amount) for size in settings.sizes)  # keeps those before one that fails
    except (UnavailableError, PayloadMismatchError, StoppedError) as error:
        told: KvdiagError = error
        if isinstance(error, UnavailableError):
            verb = Operation(settings.operation)
            told = narrowed(error, verb, options.peer, link.path, prover.before, lambda: _second_client(options))
        if results:
            unproved = TransportProof(
                status="not_observable",
                payload_bytes=runner.moved_bytes,
                evidence=(),
                missing=("the run failed: how much of its last pass arrived is not known",),
            )
            samples = {size: samples[size] for size in samples if size in {one.size_bytes for one in results}}
            options.partial(result(unproved, (), str(told)))
        if told is error:
            raise
        raise told from error
    with stages.stage("prove"):
        proof = prover.prove(runner.moved_bytes)
        errors = prover.errors()
    return result(proof, errors)


def _runner(options: ProbeOptions, client: AgentClient, link: _Link, samples: dict[int, Samples] | None) -> Runner:
    settings = options.settings
    reverse = None
    others: list[tuple[RdmaPath, Far]] = []
    if link.rails:
        others = [
            (path, Far(client, session.session))
            for path, session in zip(link.rails.path.rails, link.rails.sessions[1:], strict=True)
        ]
        if _both_ways(settings):
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
        posting=Posting(
            batch=settings.batch,
            signal=settings.signal_every,
            inline=settings.inline,
            in_flight=settings.in_flight,
            queue_pairs=settings.queue_pairs,
        ),
        rails=others,
        reverse=reverse,
        ping_pong=settings.ping_pong,
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
        completion_timestamps=endpoint.timestamps,
        latency_loop=endpoint.latency_loop if _one_at_a_time(options.settings, link) else None,
        peer_latency_loop=link.session.latency_loop if options.settings.ping_pong else None,
    )


def _one_at_a_time(settings: ProbeSettings, link: _Link) -> bool:
    rails = link.rails.path.rails if link.rails else ()
    return settings.queue_depth == settings.queue_pairs == 1 and not settings.bidirectional and not rails


def _second_client(options: ProbeOptions) -> AgentClient:
    return AgentClient(options.peer, options.credential, min(options.timeout_s, CONTROL_TIMEOUT_S))


def _buffer_bytes(settings: ProbeSettings) -> int:
    flags = _FLAG_AREA_BYTES if _both_ways(settings) or settings.ordering_rounds else 0
    return _flag_offset(settings) + flags if flags else _half_bytes(settings)


def _flag_offset(settings: ProbeSettings) -> int:
    return _half_bytes(settings) * (2 if _both_ways(settings) else 1)


def _half_bytes(settings: ProbeSettings) -> int:
    """Return the bytes of one direction's buffer, whole cache lines where another one or a flag follows."""
    most = max(size * _slots(settings, size) for size in settings.sizes)
    alone = not (_both_ways(settings) or settings.ordering_rounds)
    return most if alone else -(-most // _FLAG_AREA_BYTES) * _FLAG_AREA_BYTES


def _both_ways(settings: ProbeSettings) -> bool:
    return settings.bidirectional or settings.ping_pong


def _slots(settings: ProbeSettings, size: int) -> int:
    return slot_count(size, max(settings.queue_depth, settings.queue_pairs), settings.iterations or 1 << 30)
