"""The far ends of the data paths: an RC queue pair, or a TCP server, with the buffer behind it."""

import ipaddress
import logging
import secrets
import time
from dataclasses import dataclass

from kvdiag.errors import InputError, UndeterminedError
from kvdiag_probes.control.messages import OpenAnswer, OpenRequest
from kvdiag_probes.control.sessions import Target
from kvdiag_probes.datapath import Memory, Transport
from kvdiag_probes.gid import choose
from kvdiag_probes.tcp import TcpTarget

_log = logging.getLogger(__name__)
_QUEUE_DEPTH = 16
"""The agent posts nothing; this only sizes what a queue pair must have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceOptions:
    """The agent's own restrictions on device, port and GID slot."""

    device: str | None = None
    port: int | None = None
    gid_index: int | None = None


class TargetFactory:
    """Opens the target that a request asks for, on the best device here."""

    def __init__(self, options: DeviceOptions, idle_s: float) -> None:
        self._options = options
        self._idle_s = idle_s

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
        from kvdiag_probes.verbs import Endpoint

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
            device=options.device,
            port=options.port,
            gid_index=options.gid_index,
            addresses=[local_address],
        )
        self._endpoint = Endpoint(choice, request.size, _QUEUE_DEPTH)
        try:
            self._endpoint.connect(remote)
        except BaseException:
            self._endpoint.close()
            raise
        self._setup_s = time.perf_counter() - started_s - self._endpoint.allocate_s - self._endpoint.register_s

    @property
    def buffer(self) -> memoryview:
        return self._endpoint.buffer

    def describe(self, session: str) -> OpenAnswer:
        return OpenAnswer(
            session=session,
            allocate_s=self._endpoint.allocate_s,
            register_s=self._endpoint.register_s,
            setup_s=self._setup_s,
            device=self._endpoint.choice.name,
            queue_pair=self._endpoint.address,
        )

    def close(self) -> None:
        self._endpoint.close()
