"""The far ends of the data paths: an RC queue pair, or a TCP server, with the buffer behind it."""

import ipaddress
import logging
import secrets
import time
from dataclasses import dataclass

from kvdiag.errors import InputError, UndeterminedError, UsageError
from kvdiag_probes.control.messages import (
    OpenAnswer,
    OpenRequest,
    PassAnswer,
    PassRequest,
    ReceiveRequest,
    ServeRequest,
    VerifyRequest,
)
from kvdiag_probes.control.passes import PassRunner
from kvdiag_probes.control.sessions import Target
from kvdiag_probes.datapath import Memory, Plan, PreparedPass, Transport
from kvdiag_probes.gid import choose
from kvdiag_probes.tcp import TcpTarget

_log = logging.getLogger(__name__)
_IMMEDIATES_TIMEOUT_S = 2.0
"""The initiator asks only after its own completions: what has not come by then does not come."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceOptions:
    """The agent's own restrictions on device, port and GID slot; `device` may name several, one for each rail."""

    device: str | None = None
    port: int | None = None
    gid_index: int | None = None


class TargetFactory:
    """Opens the target that a request asks for, on the best device here."""

    def __init__(self, options: DeviceOptions, idle_s: float) -> None:
        self._options = options
        self._idle_s = idle_s

    def check(self) -> None:
        """Raise UndeterminedError where devices are named and this host has none, UsageError for a wrong name."""
        from kvdiag_probes.rdma_path import read_devices

        named = self._options.device.split(",") if self._options.device else []
        known = [device.name for device in read_devices().devices] if named else []
        for name in named:
            if not known:
                raise UndeterminedError(
                    f"--device {name}: no RDMA device on this host; load the NIC's RDMA driver, or leave --device out "
                    "to serve --transport tcp alone"
                )
            if name not in known:
                raise UsageError(f"--device {name}: there is none; there are {', '.join(known)}")

    def preload(self) -> None:
        """Import what RDMA sessions need where there is an RDMA device, so that the first probe need not wait."""
        from kvdiag_probes.rdma_path import read_devices

        if read_devices().devices:
            from kvdiag_probes.verbs import preload

            try:
                preload()
            except UndeterminedError as error:
                _log.warning("only --transport tcp is served: %s", error)

    def __call__(self, request: OpenRequest, local_address: str) -> Target:
        if request.transport == Transport.TCP:
            return _TcpTarget(request.size, local_address, self._idle_s)
        if request.transport == Transport.NIXL:
            from kvdiag_probes.kv.nixl_target import NixlTarget

            return NixlTarget(request, local_address)
        return _RdmaTarget(request, local_address, self._options)


class _TcpTarget:
    def __init__(self, size: int, host: str, idle_s: float) -> None:
        self._key = secrets.token_bytes(32)
        self._memory = Memory(size)
        try:
            self._server = TcpTarget(self._memory.view, host, key=self._key, idle_timeout_s=idle_s)
        except BaseException:
            self._memory.close()
            raise

    @property
    def buffer(self) -> memoryview:
        return self._memory.view

    def push(self, start: int, stop: int) -> None:
        """Do nothing: the transport reads the buffer itself."""

    def pull(self, start: int, stop: int) -> None:
        """Do nothing: the transport fills the buffer itself."""

    def receive(self, request: ReceiveRequest) -> None:
        raise InputError(f"TCP has no immediate data (asked for {request.count})")

    def reap(self, request: VerifyRequest) -> str | None:
        raise InputError(f"TCP has no immediate data (asked for {request.immediates})")

    def serve(self, request: ServeRequest) -> None:
        raise InputError(f"TCP needs no progress (asked for {request.seconds:g} s of it)")

    def arm(self, request: PassRequest) -> None:
        raise InputError(f"over TCP the agent runs no passes (asked for {request.slots} messages)")

    def collect(self) -> PassAnswer:
        raise InputError("over TCP the agent runs no passes")

    def describe(self, session: str) -> OpenAnswer:
        return OpenAnswer(
            session=session,
            allocate_s=0.0,
            register_s=0.0,
            setup_s=0.0,
            tcp_port=self._server.port,
            tcp_key=self._key.hex(),
        )

    def close(self) -> None:
        self._server.close()
        self._memory.close()


class _RdmaTarget:
    def __init__(self, request: OpenRequest, local_address: str, options: DeviceOptions) -> None:
        from kvdiag_probes.rdma_path import read_devices
        from kvdiag_probes.verbs import Endpoint, EndpointOptions

        remote = request.queue_pair
        if remote is None:
            raise InputError("transport rdma needs the initiator's queue_pair")
        try:
            ipaddress.IPv6Address(remote.gid)
        except ValueError as error:
            raise InputError(f"queue_pair.gid: {error}") from error
        started_s = time.perf_counter()
        choice = choose(
            read_devices(),
            device=_rail(options.device, request.rail),
            port=options.port,
            gid_index=options.gid_index,
            addresses=[local_address],
        )
        self._discover_s = time.perf_counter() - started_s
        self._remote = remote
        started_s = time.perf_counter()
        self._endpoint = Endpoint(
            choice,
            request.size,
            request.queue_depth,
            EndpointOptions(
                queue_pairs=1 + len(remote.more),
                receives=request.receives,
                memory=request.memory,
                relaxed_ordering=request.relaxed_ordering,
                grant=request.grant,
            ),
        )
        try:
            self._endpoint.connect(remote)
        except BaseException:
            self._endpoint.close()
            raise
        self._setup_s = time.perf_counter() - started_s - self._endpoint.allocate_s - self._endpoint.register_s
        self._passes = PassRunner(lambda: self._endpoint.buffer, self._prepare)

    @property
    def buffer(self) -> memoryview:
        return self._endpoint.buffer

    def push(self, start: int, stop: int) -> None:
        self._endpoint.region.push(start, stop)

    def pull(self, start: int, stop: int) -> None:
        self._endpoint.region.pull(start, stop)

    def receive(self, request: ReceiveRequest) -> None:
        if request.count > self._endpoint.options.receives:
            raise InputError(f"{request.count} receives asked for, the session has {self._endpoint.options.receives}")
        self._endpoint.receiver.post(request.count, request.chain)

    def reap(self, request: VerifyRequest) -> str | None:
        return self._endpoint.receiver.reap(request.immediates, request.chain, _IMMEDIATES_TIMEOUT_S)

    def serve(self, request: ServeRequest) -> None:
        raise InputError(f"RDMA needs no progress (asked for {request.seconds:g} s of it)")

    def arm(self, request: PassRequest) -> None:
        self._passes.arm(request)

    def collect(self) -> PassAnswer:
        return self._passes.collect()

    def _prepare(self, plan: Plan) -> PreparedPass:
        return self._endpoint.prepare(plan, self._remote, "initiator")

    def describe(self, session: str) -> OpenAnswer:
        return OpenAnswer(
            session=session,
            allocate_s=self._endpoint.allocate_s,
            register_s=self._endpoint.register_s,
            setup_s=self._setup_s,
            discover_s=self._discover_s,
            device=self._endpoint.choice.name,
            queue_pair=self._endpoint.address,
            memory=self._endpoint.region.note[:1024],
            latency_loop=self._endpoint.latency_loop,
        )

    def close(self) -> None:
        self._passes.close()
        self._endpoint.close()


def _rail(devices: str | None, rail: int) -> str | None:
    """Return the device of a rail: of several in turn, of one or none always the same."""
    names = devices.split(",") if devices else []
    if rail and len(names) < 2:
        raise UndeterminedError(
            f"the probe's --device names {rail + 1} or more devices, this agent serves one: give the probe one, or "
            "start the agent with as many (--device a,b)"
        )
    return names[rail % len(names)] if names else None
