"""The data path over TCP: the same passes as over verbs, each message one request of one block."""

import time
from collections import deque

from kvdiag_probes.datapath import Memory, Pass, Plan
from kvdiag_probes.tcp import TcpInitiator


class TcpPath:
    """One connection to an agent's TcpTarget; nothing is registered."""

    def __init__(self, host: str, port: int, key: bytes, size: int, timeout_s: float) -> None:
        self._initiator = TcpInitiator.connect(host, port, timeout_s, key=key)
        self._memory = Memory(size)

    @property
    def buffer(self) -> memoryview:
        return self._memory.view

    @property
    def moved_bytes(self) -> tuple[int, int]:
        """Bytes that the kernel says the peer acknowledged, and bytes received, on the data connection."""
        return self._initiator.moved_bytes()

    def prepare(self, plan: Plan) -> "TcpPass":
        return TcpPass(self._initiator, plan, self._memory.view)

    def push(self, start: int, stop: int) -> None:
        """Do nothing: the transport reads the buffer itself."""

    def pull(self, start: int, stop: int) -> None:
        """Do nothing: the transport fills the buffer itself."""

    def close(self) -> None:
        self._initiator.close()
        self._memory.close()


class TcpPass:
    def __init__(self, initiator: TcpInitiator, plan: Plan, buffer: memoryview) -> None:
        self._post = initiator.post_write if plan.operation.pushes else initiator.post_read
        self._wait = initiator.wait
        self._plan = plan
        self._buffer = buffer

    def run(self) -> Pass:
        clock = time.perf_counter
        size, slots, depth = self._plan.size, self._plan.slots, self._plan.queue_depth
        posted_at: deque[float] = deque()
        latencies: list[float] = []
        starts: list[float] = []
        started_s = clock()
        for slot in range(slots):
            if len(posted_at) == depth:
                self._wait()
                latencies.append(clock() - posted_at.popleft())
            starts.append(clock())
            posted_at.append(starts[-1])
            self._post([(slot * size, slot * size, size)], self._buffer)
        while posted_at:
            self._wait()
            latencies.append(clock() - posted_at.popleft())
        return Pass(clock() - started_s, latencies, starts)

    def close(self) -> None:
        """Nothing is held."""
