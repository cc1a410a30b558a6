"""Fresh connections to one peer, one after another, every step timed; then the same transfer on a used connection."""

import contextlib
import socket
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from kvdiag.derive.intervals import median, metric
from kvdiag.errors import UnavailableError
from kvdiag.model.kv_geometry import Block
from kvdiag.model.missing import Missing
from kvdiag.model.probe import ProbeEnds
from kvdiag.model.probe_cold import ColdStage
from kvdiag.model.probe_judgement import Metric
from kvdiag_probes import pattern, tracing
from kvdiag_probes.budget import Budget, current
from kvdiag_probes.control.address import Address
from kvdiag_probes.control.client import AgentClient
from kvdiag_probes.control.credential import Credential
from kvdiag_probes.control.messages import OpenRequest
from kvdiag_probes.datapath import Operation, Transport
from kvdiag_probes.errors import PayloadMismatchError
from kvdiag_probes.gid import choose
from kvdiag_probes.kv.path import KvPath
from kvdiag_probes.kv.rdma_path import DEPTH, RdmaKvPath
from kvdiag_probes.kv.tcp_path import TcpKvPath, agent_session
from kvdiag_probes.narrowing import narrowing
from kvdiag_probes.progress import bar
from kvdiag_probes.proof import read_counters
from kvdiag_probes.rdma_path import read_devices
from kvdiag_probes.tcp import TcpInitiator

STAGES = ("resolve", "handshake", "open", "register", "peer", "peer_register", "connect", "first_write")


@dataclass(frozen=True, slots=True, kw_only=True)
class ColdOptions:
    peer: Address
    credential: Credential
    transport: Transport
    size: int
    rounds: int
    steady: int
    timeout_s: float
    device: str | None = None
    port: int | None = None
    gid_index: int | None = None
    budget: Budget = field(default_factory=current)
    progress: Callable[[str], None] = lambda _: None


@dataclass(slots=True)
class ColdResult:
    ends: ProbeEnds
    stages: list[dict[str, float]] = field(default_factory=list)
    steady_s: list[float] = field(default_factory=list)


def measure(options: ColdOptions, partial: Callable[[ColdResult], None] = lambda _: None) -> ColdResult:
    """Connect `rounds` + 1 times afresh; errors are those of the endpoint and the client, and leave nothing open.

    `partial` gets the result after each connection, so that what was measured before a failure is not lost.
    """
    result: ColdResult | None = None
    for number in range(options.rounds + 1):
        rate = options.size / result.steady_s[-1] if result else None
        options.progress(bar(number, options.rounds + 1, f"connection {number + 1} of {options.rounds + 1}", rate))
        clock = _Stages()
        with tracing.span(tracing.ROUNDS, f"connection {number + 1}"), contextlib.ExitStack() as stack:
            path, ends = stack.enter_context(_connected(options, clock))
            result = result or ColdResult(ends)
            clock.seconds["first_write"] = _write(path, options, number)
            result.stages.append(dict(clock.seconds))
            # The first transfers after a connection still warm caches: half of them are not counted.
            timings = []
            for _ in range(2 * options.steady):
                timings.append(_transfer(path, options))
                options.budget.spend(options.size)
            result.steady_s.append(median(timings[options.steady :]))
            partial(result)
    assert result is not None
    return result


def steady_bandwidth(options: ColdOptions, result: ColdResult) -> Metric:
    """Return what one transfer at a time moves on a used connection, in bytes per second."""
    rates = [options.size / seconds for seconds in result.steady_s[1:]]
    return metric("cold.steady.bandwidth", "bytes_per_second", "higher", rates)


def summarise(result: ColdResult) -> tuple[tuple[ColdStage, ...], float, Metric, Metric, Metric]:
    """Return the stages, the very first total, the later totals, the steady transfer and the slowdown."""
    first, *later = result.stages[: len(result.steady_s)]
    totals = [sum(one.values()) for one in later]
    stages = tuple(
        ColdStage(
            name=name,
            first_s=first[name],
            again=metric(f"cold.{name}", "seconds", "lower", [one[name] for one in later]),
        )
        for name in STAGES
        if name in first
    )
    ratios = [total / steady for total, steady in zip(totals, result.steady_s[1:], strict=True)]
    return (
        stages,
        sum(first.values()),
        metric("cold.total", "seconds", "lower", totals),
        metric("cold.steady", "seconds", "lower", result.steady_s[1:]),
        metric("cold.slowdown", "ratio", "lower", ratios),
    )


class _Stages:
    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[None]:
        started_s = time.perf_counter()
        with tracing.span(tracing.STAGES, name):
            yield
        self.seconds[name] += time.perf_counter() - started_s

    def move(self, name: str, to: str, seconds: float) -> None:
        self.seconds[name] -= seconds
        self.seconds[to] += seconds


@contextlib.contextmanager
def _connected(options: ColdOptions, clock: _Stages) -> Iterator[tuple[KvPath, ProbeEnds]]:
    with clock.stage("resolve"):
        try:
            host = socket.getaddrinfo(options.peer.host, options.peer.port, type=socket.SOCK_STREAM)[0][4][0]
        except OSError as error:
            raise UnavailableError(f"{options.peer}: {error.strerror}; is the name right?") from error
    peer = options.peer if options.credential.tls else replace(options.peer, host=str(host))
    with AgentClient(peer, options.credential, options.timeout_s) as client:
        with clock.stage("handshake"):
            name = client.hello().host
        opened = _rdma if options.transport is Transport.RDMA else _tcp
        with opened(options, peer, client, clock, name) as found:
            yield found


@contextlib.contextmanager
def _tcp(
    options: ColdOptions, peer: Address, client: AgentClient, clock: _Stages, host: str
) -> Iterator[tuple[KvPath, ProbeEnds]]:
    with contextlib.ExitStack() as stack:
        stack.enter_context(narrowing(peer, options.credential, None, Missing("TCP has no port")))
        with clock.stage("peer"):
            request = OpenRequest(transport=Transport.TCP, size=options.size)
            session = stack.enter_context(agent_session(client, request))
        assert session.tcp_port is not None
        assert session.tcp_key is not None
        key = bytes.fromhex(session.tcp_key)
        with clock.stage("connect"):
            initiator = TcpInitiator.connect(peer.host, session.tcp_port, options.timeout_s, key=key)
        stack.enter_context(initiator)
        path = TcpKvPath(initiator, client, session.session, options.size)
        yield path, ProbeEnds(peer=str(options.peer), peer_host=host)


@contextlib.contextmanager
def _rdma(
    options: ColdOptions, peer: Address, client: AgentClient, clock: _Stages, host: str
) -> Iterator[tuple[KvPath, ProbeEnds]]:
    from kvdiag_probes.verbs import Endpoint, preload

    addresses = [client.local_address] if client.local_address else []
    choice = choose(
        read_devices(), device=options.device, port=options.port, gid_index=options.gid_index, addresses=addresses
    )
    preload()
    with contextlib.ExitStack() as stack:
        with clock.stage("open"):
            endpoint = stack.enter_context(Endpoint(choice, options.size, DEPTH))
        clock.move("open", "register", endpoint.register_s)
        clock.seconds["open"] -= endpoint.allocate_s
        before = read_counters(choice.device, choice.port)
        stack.enter_context(narrowing(peer, options.credential, endpoint, before))
        with clock.stage("peer"):
            request = OpenRequest(transport=Transport.RDMA, size=options.size, queue_pair=endpoint.address)
            session = stack.enter_context(agent_session(client, request))
        clock.move("peer", "peer_register", session.register_s)
        # Engines allocate their memory and look for their device once, when they start.
        clock.seconds["peer"] -= session.allocate_s + session.discover_s
        assert session.queue_pair is not None
        with clock.stage("connect"):
            endpoint.connect(session.queue_pair)
        ends = ProbeEnds(
            peer=str(options.peer),
            peer_host=host,
            local_device=choice.name,
            peer_device=session.device,
            path_mtu=endpoint.path_mtu,
        )
        yield RdmaKvPath(endpoint, session.queue_pair, client, session.session, str(peer)), ends


def _transfer(path: KvPath, options: ColdOptions) -> float:
    with tracing.span(tracing.OPERATIONS, "WRITE", bytes=options.size):
        started_s = time.perf_counter()
        timing = path.transfer(Operation.WRITE, [[Block(0, 0, options.size, 0)]], options.timeout_s, 1)
        tracing.rate(tracing.THROUGHPUT, started_s, time.perf_counter() - started_s, options.size)
    return timing.total_s - timing.build_s


def _write(path: KvPath, options: ColdOptions, seed: int) -> float:
    path.fill(seed, options.size, far=False)
    seconds = _transfer(path, options)
    options.budget.spend(options.size)
    expected = bytearray(options.size)
    pattern.fill(memoryview(expected), seed)
    if path.digest(options.size, far=True) != pattern.digest(memoryview(expected)):
        raise PayloadMismatchError(
            f"{options.peer}: the first WRITE delivered wrong bytes; repeat with --transport tcp"
        )
    return seconds
