"""One NIXL agent in a process of its own: its exit, its log and its progress are then nobody else's."""

import contextlib
import ctypes
import mmap
import os
import socket
import stat
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvdiag.errors import KvdiagError, UnavailableError, UndeterminedError
from kvdiag_probes import pattern, tcp_info
from kvdiag_probes.demo import nixl_import
from kvdiag_probes.kv.path import Timing, await_all

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

ENVIRONMENT = {"UCX_TLS": "tcp", "UCX_MODULES": "^efa", "NIXL_LOG_LEVEL": "WARN"}
"""Used where the variable is not set; with UCX_TLS=tcp,cma the kernel copies from process to process instead."""
_LOOPBACK = {"UCX_NET_DEVICES": "lo"}
_IDLE_S, _PROGRESS_CALLS = 0.05, 256


class Worker:
    """Answers the parent's calls; each is a method's name and its arguments."""

    def __init__(self, name: str, memory: mmap.mmap) -> None:
        nixl = nixl_import.api()
        self._agent: Any = nixl.nixl_agent(name, nixl.nixl_agent_config(enable_prog_thread=False))
        self._view = memoryview(memory)
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        self._agent.register_memory([(self._address, len(memory), 0, "")], "DRAM")
        self._serve_until_s = 0.0

    def endpoint(self) -> tuple[bytes, int]:
        """Return what the other side must know: metadata and address."""
        return self._agent.get_agent_metadata(), self._address

    def connect(self, metadata: bytes, address: int) -> None:
        """Learn of the other side."""
        self._peer = self._agent.add_remote_agent(metadata)
        self._remote = address

    @property
    def busy(self) -> bool:
        """Whether the agent is to be progressed all the time."""
        return time.monotonic() < self._serve_until_s

    def serve(self, seconds: float) -> None:
        """Progress the agent all the time for so long, then seldom."""
        self._serve_until_s = time.monotonic() + seconds

    def sockets(self) -> tuple[str, int, int]:
        """Return UCX_TLS, and what this process's TCP connections had acknowledged and received, in bytes."""
        moved = [_moved(int(link.name)) for link in Path("/proc/self/fd").iterdir()]
        return os.environ["UCX_TLS"], sum(sent for sent, _ in moved), sum(received for _, received in moved)

    def progress(self) -> None:
        """Let the agent do what the other side asks for."""
        self._agent.get_new_notifs()

    def fill(self, seed: int, size: int) -> None:
        """Write a pattern over the first bytes of the memory."""
        pattern.fill(self._view[:size], seed)

    def digest(self, size: int) -> str:
        """Return the digest of the first bytes of the memory."""
        return pattern.digest(self._view[:size])

    def transfer(self, operation: str, groups: "list[NDArray[np.uint64]]", timeout_s: float, repeats: int) -> Timing:
        """Move groups of (local offset, remote offset, length) rows, again and again; return the fastest time."""
        clock, agent = time.perf_counter, self._agent
        started_s = clock()
        handles = [self._build(operation, rows) for rows in groups]
        build_s = clock() - started_s
        found = []
        try:
            for _ in range(repeats):
                started_s = clock()
                states = [agent.transfer(handle) for handle in handles]
                posted_s = clock()
                left = [handle for handle, state in zip(handles, states, strict=True) if state != "DONE"]
                asked_s, between_s = await_all([self._asking(handle) for handle in left], timeout_s, "NIXL")
                found.append(Timing(build_s=build_s, post_s=posted_s - started_s, wire_s=between_s, poll_s=asked_s))
        finally:
            for handle in handles:
                handle.release()
        return min(found, key=lambda timing: timing.total_s)

    def _build(self, operation: str, rows: "NDArray[np.uint64]") -> Any:
        import numpy as np

        local, remote = np.zeros((len(rows), 3), np.uint64), np.zeros((len(rows), 3), np.uint64)
        local[:, 0], remote[:, 0] = rows[:, 0] + np.uint64(self._address), rows[:, 1] + np.uint64(self._remote)
        local[:, 1] = remote[:, 1] = rows[:, 2]
        sides = [self._agent.get_xfer_descs(side, "DRAM") for side in (local, remote)]
        return self._agent.initialize_xfer(operation.upper(), *sides, self._peer)

    def _asking(self, handle: Any) -> Callable[[], bool]:
        def done() -> bool:
            state = self._agent.check_xfer_state(handle)
            if state == "ERR":
                raise UnavailableError("NIXL reports that the transfer failed")
            return bool(state == "DONE")

        return done


def _moved(fd: int) -> tuple[int, int]:
    try:
        if not stat.S_ISSOCK(os.fstat(fd).st_mode):
            return 0, 0
        with socket.socket(fileno=os.dup(fd)) as one:
            if one.family not in (socket.AF_INET, socket.AF_INET6) or one.type != socket.SOCK_STREAM:
                return 0, 0
            return tcp_info.moved_bytes(one)
    except OSError:
        return 0, 0  # closed since it was listed, or a listening socket


def refusal(error: Exception) -> str:
    """Return why NIXL does not start, with what UCX was told and where it says more."""
    told = " ".join(f"{name}={os.environ[name]}" for name in ("UCX_TLS", "UCX_NET_DEVICES") if name in os.environ)
    return (
        f"NIXL does not start with {told or 'UCX left alone'}: {error}; next: see UCX's lines on standard error (of "
        "the agent, where it is the agent that says this), or leave these variables out for TCP"
    )


def main(connection: Connection, name: str, size: int, loopback: bool, shared: bool) -> None:
    """Make a worker and serve until the parent closes the connection; never prints to standard output.

    With `shared` the parent sends the descriptor of the memory first.
    """
    wanted = ENVIRONMENT | (_LOOPBACK if loopback else {})
    os.environ.update({name: value for name, value in wanted.items() if name not in os.environ})
    os.dup2(2, 1)  # UCX logs to standard output, where the probe's document belongs
    try:
        if shared:
            memory = mmap.mmap(recv_handle(connection), size, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
        else:
            memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE)
        worker = Worker(name, memory)
    except Exception as error:
        with contextlib.suppress(OSError):  # the other end failed first, and the parent is gone
            connection.send((UndeterminedError.__name__, refusal(error)))
        os._exit(1)
    connection.send((None, None))
    while True:
        try:
            # Looking at the connection costs more than progressing the agent.
            for _ in range(_PROGRESS_CALLS if worker.busy else 1):
                worker.progress()
            if not connection.poll(0 if worker.busy else _IDLE_S):
                continue
            method, arguments = connection.recv()
        except (EOFError, OSError):
            os._exit(0)  # the destructors of UCX and of the distribution's libibverbs collide in a normal exit
        try:
            connection.send((None, getattr(worker, method)(*arguments)))
        except KvdiagError as error:
            connection.send((error.__class__.__name__, str(error)))
        except Exception as error:
            connection.send((error.__class__.__name__, f"NIXL: {error}"))
