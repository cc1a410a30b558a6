"""The far end of NIXL transfers: a session whose buffer a NIXL agent in a process of its own has registered."""

import base64
import binascii
import ipaddress
import mmap
import os
import time

from kvdiag.errors import InputError
from kvdiag_probes.control.messages import (
    OpenAnswer,
    OpenRequest,
    PassAnswer,
    PassRequest,
    ReceiveRequest,
    ServeRequest,
    VerifyRequest,
)
from kvdiag_probes.kv.nixl_child import NixlChild


class NixlTarget:
    """Knows the initiator's NIXL agent by its metadata; UndeterminedError where NIXL is not installed here."""

    def __init__(self, request: OpenRequest, local_address: str) -> None:
        if request.nixl_metadata is None:
            raise InputError("transport nixl needs the initiator's nixl_metadata")
        try:
            initiator = base64.b64decode(request.nixl_metadata, validate=True)
        except binascii.Error as error:
            raise InputError(f"nixl_metadata: {error}") from error
        started_s = time.perf_counter()
        fd = os.memfd_create("kvdiag-nixl")
        try:
            os.ftruncate(fd, request.size)
            self._map = mmap.mmap(fd, request.size)
            self.buffer = memoryview(self._map)
            self._child = NixlChild(
                "target", request.size, loopback=ipaddress.ip_address(local_address).is_loopback, fd=fd
            )
        finally:
            os.close(fd)
        try:
            self._child.ready()
            self._metadata, self._address = self._child.call("endpoint")
            self._child.call("connect", initiator, 0)
        except BaseException:
            self.close()
            raise
        self._setup_s = time.perf_counter() - started_s

    def push(self, start: int, stop: int) -> None:
        """Do nothing: the buffer is the very memory that NIXL has registered."""

    def pull(self, start: int, stop: int) -> None:
        """Do nothing: the buffer is the very memory that NIXL has registered."""

    def serve(self, request: ServeRequest) -> None:
        self._child.call("serve", request.seconds)

    def receive(self, request: ReceiveRequest) -> None:
        raise InputError(f"NIXL has no immediate data (asked for {request.count})")

    def reap(self, request: VerifyRequest) -> str | None:
        raise InputError(f"NIXL has no immediate data (asked for {request.immediates})")

    def arm(self, request: PassRequest) -> None:
        raise InputError(f"over NIXL the agent runs no passes (asked for {request.slots} messages)")

    def collect(self) -> PassAnswer:
        raise InputError("over NIXL the agent runs no passes")

    def describe(self, session: str) -> OpenAnswer:
        return OpenAnswer(
            session=session,
            allocate_s=0.0,
            register_s=0.0,
            setup_s=self._setup_s,
            nixl_metadata=base64.b64encode(self._metadata).decode(),
            nixl_address=str(self._address),
        )

    def close(self) -> None:
        self._child.close()
        self.buffer.release()
        self._map.close()
