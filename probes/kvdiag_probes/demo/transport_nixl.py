"""The demo over real NIXL agents: UCX backend, host memory, one agent per process."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from kvdiag.errors import UnavailableError
from kvdiag_probes.demo import nixl_import
from kvdiag_probes.demo.channel import Endpoint
from kvdiag_probes.demo.transport import Staging, allocate, make_pool, mark
from kvdiag_probes.demo.workload import LAYERS, POOL_BYTES, POOL_TOKENS, SLOT_BYTES

if TYPE_CHECKING:
    from numpy.typing import NDArray


class _Agent:
    def __init__(self, name: str) -> None:
        nixl = nixl_import.api()
        # Its progress thread would spin on a core; the workers' loops progress the agent instead.
        self.agent: Any = nixl.nixl_agent(name, nixl.nixl_agent_config(enable_prog_thread=False))
        self._memory, self._address = make_pool()
        self.pool = memoryview(self._memory)
        self.agent.register_memory([(self._address, POOL_BYTES, 0, "")], "DRAM")

    def endpoint(self) -> Endpoint:
        return Endpoint(self.agent.get_agent_metadata(), self._address)


class NixlTransfer:
    """A posted WRITE, its handle, and what belongs to this request alone."""

    def __init__(self, agent: Any, handle: Any, local: Any, staging: Staging | None) -> None:
        self._agent, self._handle, self._local, self._staging = agent, handle, local, staging
        self._state: str = "PROC"

    def start(self) -> None:
        """Post it."""
        self._state = self._agent.transfer(self._handle)

    def descriptors(self) -> int:
        return int(self._agent.get_xfer_telemetry(self._handle).descCount)

    def done(self) -> bool:
        if self._state == "PROC":
            self._state = self._agent.check_xfer_state(self._handle)
        if self._state == "ERR":
            raise UnavailableError("NIXL reports that a transfer failed; see the prefill log")
        return self._state == "DONE"

    def release(self) -> None:
        self._handle.release()
        if self._staging is not None:
            self._local.release()
            self._staging.free()


class NixlInitiator(_Agent):
    registers = True
    target_sees_arrival = True

    def connect(self, peer: Endpoint) -> None:
        self._peer: str = self.agent.add_remote_agent(peer.metadata)
        self._local_side = self.agent.prep_xfer_dlist("", _rows(self._address, _all_slots()), "DRAM")
        self._remote_side = self.agent.prep_xfer_dlist(self._peer, _rows(peer.pool_address, _all_slots()), "DRAM")

    def register_staging(self, size: int) -> tuple[Staging, bytes]:
        memory, address = allocate(size)
        layer_bytes = size // LAYERS
        regions = [(address + layer * layer_bytes, layer_bytes, 0, "") for layer in range(LAYERS)]
        registered = [self.agent.register_memory([region], "DRAM") for region in regions]
        metadata: bytes = self.agent.get_agent_metadata()

        def free() -> None:
            for region in registered:
                self.agent.deregister_memory(region)
            memory.close()

        return Staging(memory, address, layer_bytes, free), metadata

    def post(self, number: int, slots: "NDArray[np.int32]", staging: Staging | None) -> NixlTransfer:
        side, indices, source = self._local_side, slots, self._memory
        offsets = slots.astype(np.int64) * SLOT_BYTES
        if staging is not None:
            offsets, source = _staged(len(slots) // LAYERS, staging.layer_bytes), staging.memory
            side = self.agent.prep_xfer_dlist("", _rows(staging.address, offsets), "DRAM")
            indices = np.arange(len(slots), dtype=np.int32)
        for offset in (int(offsets[0]), int(offsets[-1])):
            source[offset : offset + len(mark(number))] = mark(number)
        notification = str(number).encode()
        handle = self.agent.make_prepped_xfer("WRITE", side, indices, self._remote_side, slots, notification)
        transfer = NixlTransfer(self.agent, handle, side, staging)
        transfer.start()
        return transfer


class NixlTarget(_Agent):
    _knows_all = True

    def load(self, metadata: bytes) -> None:
        if not self._knows_all:
            return
        try:
            self.agent.add_remote_agent(metadata)
        except Exception as error:
            # Over RDMA memory that is registered anew has a new key. NIXL takes no second one for the same address, and
            # no more of the peer after that; nothing here reads the peer's memory.
            if type(error).__name__ != "nixlNotAllowedError":
                raise
            self._knows_all = False

    def arrivals(self) -> Sequence[int]:
        messages = self.agent.get_new_notifs()
        return [int(message) for of_agent in messages.values() for message in of_agent] if messages else ()


def open_initiator(name: str, address: str) -> NixlInitiator:  # noqa: ARG001 - UCX finds the address by the device
    """Create prefill's agent."""
    return NixlInitiator(name)


def open_target(name: str, address: str) -> NixlTarget:  # noqa: ARG001 - UCX finds the address by the device
    """Create decode's agent."""
    return NixlTarget(name)


def _all_slots() -> "NDArray[np.int64]":
    return np.arange(LAYERS * POOL_TOKENS, dtype=np.int64) * SLOT_BYTES


def _staged(tokens: int, layer_bytes: int) -> "NDArray[np.int64]":
    offsets = np.arange(LAYERS)[:, None] * layer_bytes + np.arange(tokens)[None, :] * SLOT_BYTES
    return offsets.reshape(-1).astype(np.int64)


def _rows(base: int, offsets: "NDArray[np.int64]") -> "NDArray[np.uint64]":
    rows = np.zeros((len(offsets), 3), dtype=np.uint64)
    rows[:, 0] = np.uint64(base) + offsets.astype(np.uint64)
    rows[:, 1] = SLOT_BYTES
    return rows
