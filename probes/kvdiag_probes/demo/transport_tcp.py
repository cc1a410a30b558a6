"""The demo over the TCP probe transport, where NIXL's wheel is not available."""

import secrets
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

from kvdiag.errors import UndeterminedError
from kvdiag_probes.demo.blocks import runs
from kvdiag_probes.demo.channel import Endpoint
from kvdiag_probes.demo.transport import Staging, make_pool, mark
from kvdiag_probes.demo.workload import SLOT_BYTES
from kvdiag_probes.tcp import TcpInitiator, TcpTarget

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_TIMEOUT_S = 30.0


class TcpTransfer:
    def __init__(self, future: "Future[None]", descriptors: int) -> None:
        self._future, self._descriptors = future, descriptors

    def descriptors(self) -> int:
        return self._descriptors

    def done(self) -> bool:
        if not self._future.done():
            return False
        self._future.result()
        return True

    def release(self) -> None:
        return


class TcpPush:
    """The prefill side: one connection, and a thread that sends so that the loop can go on."""

    registers = False
    target_sees_arrival = False

    def __init__(self) -> None:
        self._memory, self._address = make_pool()
        self._pool = memoryview(self._memory)
        self._sender = ThreadPoolExecutor(1)

    def endpoint(self) -> Endpoint:
        return Endpoint(b"", self._address)

    def connect(self, peer: Endpoint) -> None:
        host, port, key = peer.metadata.decode().rsplit(" ", 2)
        self._connection = TcpInitiator.connect(host, int(port), _TIMEOUT_S, key=bytes.fromhex(key))

    def register_staging(self, size: int) -> tuple[Staging, bytes]:
        raise UndeterminedError(f"the TCP transport registers no memory ({size} bytes asked for): this needs NIXL")

    def post(self, number: int, slots: "NDArray[np.int32]", staging: Staging | None) -> TcpTransfer:  # noqa: ARG002
        for slot in (int(slots[0]), int(slots[-1])):
            self._pool[slot * SLOT_BYTES : slot * SLOT_BYTES + len(mark(number))] = mark(number)
        blocks = [(first * SLOT_BYTES, first * SLOT_BYTES, count * SLOT_BYTES) for first, count in runs(slots)]
        return TcpTransfer(self._sender.submit(self._connection.write, blocks, self._pool), len(blocks))


class TcpPool:
    """The decode side: its pool behind a TcpTarget; the initiator tells what arrived."""

    def __init__(self, address: str) -> None:
        self._memory, self._address = make_pool()
        self.pool = memoryview(self._memory)
        self._key = secrets.token_bytes(16)
        self._server = TcpTarget(self.pool, address, key=self._key)

    def endpoint(self) -> Endpoint:
        return Endpoint(f"{self._server.host} {self._server.port} {self._key.hex()}".encode(), self._address)

    def load(self, metadata: bytes) -> None:
        raise UndeterminedError(f"TCP has no metadata to load ({len(metadata)} bytes came)")

    def arrivals(self) -> Sequence[int]:
        return ()


def open_initiator(name: str, address: str) -> TcpPush:  # noqa: ARG001 - the kernel chooses the local address
    """Create prefill's side."""
    return TcpPush()


def open_target(name: str, address: str) -> TcpPool:  # noqa: ARG001 - TCP knows no agent names
    """Create decode's side, listening on `address`."""
    return TcpPool(address)
