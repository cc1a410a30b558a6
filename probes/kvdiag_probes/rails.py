"""Opens the data path over verbs: for each device a session at the agent, and queue pairs connected to it."""

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from kvdiag.errors import UsageError
from kvdiag_probes import injection, numa
from kvdiag_probes.control.client import AgentClient
from kvdiag_probes.control.messages import OpenAnswer, OpenRequest
from kvdiag_probes.datapath import Operation, Transport
from kvdiag_probes.gid import Choice, choose
from kvdiag_probes.memory import MemoryKind
from kvdiag_probes.rdma_path import RdmaPath, read_devices
from kvdiag_probes.stages import REST, Stages

Opener = Callable[[OpenRequest], AbstractContextManager[OpenAnswer]]


@dataclass(frozen=True, slots=True, kw_only=True)
class RailOptions:
    """What each rail is: `devices` names one for every rail (None: chosen), sizes are in bytes."""

    peer: str
    size: int
    queue_depth: int
    operation: Operation
    devices: Sequence[str | None] = (None,)
    port: int | None = None
    gid_index: int | None = None
    queue_pairs: int = 1
    inline: int = 0
    receives: int = 0
    memory: MemoryKind = MemoryKind.HOST
    peer_memory: MemoryKind = MemoryKind.HOST
    relaxed_ordering: bool = False
    inject: injection.Injection | None = None
    stages: Stages = field(default_factory=Stages)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rails:
    """`path` is the first rail and holds the others; `sessions` are the agent's, in the same order.

    `connect_s` is from the first queue pair call to every pair connected, the exchange included, memory and the
    search for devices excluded.
    """

    path: RdmaPath
    sessions: tuple[OpenAnswer, ...]
    connect_s: float
    pinning: str

    @property
    def paths(self) -> tuple[RdmaPath, ...]:
        return (self.path, *self.path.rails)


@contextlib.contextmanager
def open_rails(options: RailOptions, client: AgentClient, session: Opener) -> Iterator[Rails]:
    """Open every rail, and free them all in the end; `session` opens one at the agent and closes it."""
    from kvdiag_probes.verbs import preload

    stages = options.stages
    with stages.stage("load"):
        preload()
    paths: list[RdmaPath] = []
    sessions: list[OpenAnswer] = []
    connect_s = 0.0
    with stages.stage("close"), contextlib.ExitStack() as stack, stages.stage("connect"):
        pinning = ""
        for number, device in enumerate(options.devices):
            with stages.stage("discover"):
                choice = choose(
                    read_devices(),
                    device=device,
                    port=options.port,
                    gid_index=options.gid_index,
                    addresses=[client.local_address] if client.local_address else [],
                )
            # Each rail's memory is touched first beside its device; the posting thread stays beside the first.
            with numa.beside(choice.device):
                path, answer, seconds = _open(stack, options, number, choice, session)
            if not number:
                pinning = stack.enter_context(numa.beside(choice.device))
            connect_s += seconds
            paths.append(path)
            sessions.append(answer)
        first = paths[0]
        first.rails = paths[1:]
        with stages.stage(REST):
            yield Rails(path=first, sessions=tuple(sessions), connect_s=connect_s, pinning=pinning)


def _open(
    stack: contextlib.ExitStack, options: RailOptions, number: int, choice: Choice, session: Opener
) -> tuple[RdmaPath, OpenAnswer, float]:
    from kvdiag_probes.verbs import Endpoint, EndpointOptions

    started_s = time.perf_counter()
    made = EndpointOptions(
        queue_pairs=options.queue_pairs,
        inline_bytes=options.inline,
        receives=options.receives,
        memory=options.memory,
        relaxed_ordering=options.relaxed_ordering,
    )
    endpoint = stack.enter_context(Endpoint(choice, options.size, options.queue_depth, made))
    request = OpenRequest(
        transport=Transport.RDMA,
        size=options.size,
        queue_pair=injection.announced(options.inject, endpoint.address),
        rail=number,
        queue_depth=options.queue_depth,
        receives=options.receives,
        memory=options.peer_memory,
        relaxed_ordering=options.relaxed_ordering,
        grant=injection.grant(options.inject, options.operation),
    )
    with options.stages.stage("control"):
        answer = stack.enter_context(session(request))
    remote = answer.queue_pair
    if remote is None:
        raise UsageError(f"{options.peer}: the agent opened no queue pair")
    endpoint.connect(injection.connected(options.inject, remote, endpoint.address.mtu))
    other_s = endpoint.allocate_s + endpoint.register_s + answer.allocate_s + answer.register_s + answer.discover_s
    stages = options.stages
    stages.move("connect", "allocate", endpoint.allocate_s)
    stages.move("connect", "register", endpoint.register_s)
    stages.move("control", "peer_discover", answer.discover_s)
    stages.move("control", "peer_allocate", answer.allocate_s)
    stages.move("control", "peer_register", answer.register_s)
    stages.move("control", "peer_connect", answer.setup_s)
    path = RdmaPath(endpoint, injection.targeted(options.inject, remote, options.size), options.peer)
    path.spoil_lane = injection.spoiler(options.inject, options.size)
    return path, answer, time.perf_counter() - started_s - other_s
