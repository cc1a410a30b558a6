"""The agent's own passes, for bidirectional transfers, and its watch for flags: each waits for the initiator's flag."""

import struct
import threading
import time
from collections.abc import Callable

from kvdiag.errors import InputError, KvdiagError
from kvdiag_probes.control.messages import PassAnswer, PassRequest
from kvdiag_probes.corruption import classify
from kvdiag_probes.datapath import ExchangingPass, Pass, Plan, PreparedPass
from kvdiag_probes.ping_pong import expect

_FLAG = struct.Struct("<Q")
_SPINS = 64
_MOST_PREPARED = 4
_YIELD_S = 20e-6


class PassRunner:
    """Runs one pass at a time in a thread of its own; the last few prepared passes are kept."""

    def __init__(self, buffer: Callable[[], memoryview], prepare: Callable[[Plan], PreparedPass]) -> None:
        self._buffer = buffer
        self._prepare = prepare
        self._prepared: dict[Plan, PreparedPass] = {}
        self._thread: threading.Thread | None = None
        self._answer: PassAnswer | None = None
        self._stopped = threading.Event()
        self._timeout_s = 0.0

    def arm(self, request: PassRequest) -> None:
        """Return when the pass waits for its flag; InputError where it would leave the buffer or one is under way."""
        size = len(self._buffer())
        if request.base + request.size * request.slots > size or request.flag_offset + _FLAG.size > size:
            raise InputError(f"the pass or its flag would leave the session's buffer of {size} bytes")
        if self._thread is not None:
            raise InputError("a pass is under way: collect it first")
        if request.answer:
            run = self._answering(request)
        else:
            run = self._watching(request) if request.watch else self._transferring(request)
        self._answer = None
        self._timeout_s = request.timeout_s
        self._thread = threading.Thread(target=self._run, args=(request, run), name="kvdiag-pass", daemon=True)
        self._thread.start()

    def collect(self) -> PassAnswer:
        """Return how the pass went, waiting for its end; InputError where none was asked for."""
        if self._thread is None:
            raise InputError("no pass was asked for")
        self._thread.join(2 * self._timeout_s + 1)
        if self._thread.is_alive():
            return PassAnswer(elapsed_s=0.0, error=f"the pass did not end within {2 * self._timeout_s:g} s")
        self._thread = None
        assert self._answer is not None
        return self._answer

    def close(self) -> None:
        """Stop waiting for a flag, let a pass end (it is bounded in time), and free the work requests."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        for prepared in self._prepared.values():
            prepared.close()
        self._prepared.clear()

    def _run(self, request: PassRequest, run: Callable[[], PassAnswer]) -> None:
        try:
            started = request.answer or self._await_flag(request)
            self._answer = run() if started else PassAnswer(elapsed_s=0.0, error="no flag came")
        except KvdiagError as error:
            self._answer = PassAnswer(elapsed_s=0.0, error=str(error)[:1024])
        except Exception as error:
            self._answer = PassAnswer(elapsed_s=0.0, error=f"internal error: {type(error).__name__}: {error}"[:1024])

    def _await_flag(self, request: PassRequest) -> bool:
        buffer, offset, spins = self._buffer(), request.flag_offset, 0
        deadline_s = time.monotonic() + request.timeout_s
        while _FLAG.unpack_from(buffer, offset)[0] != request.flag:
            spins += 1
            if spins % _SPINS == 0:
                if self._stopped.is_set() or time.monotonic() > deadline_s:
                    return False
                time.sleep(_YIELD_S)
        return True

    def _transferring(self, request: PassRequest) -> Callable[[], PassAnswer]:
        prepared = self._preparing(request)

        def transfer() -> PassAnswer:
            done: Pass = prepared.run()
            return PassAnswer(elapsed_s=done.elapsed_s)

        return transfer

    def _answering(self, request: PassRequest) -> Callable[[], PassAnswer]:
        if request.size * request.slots > request.base or request.queue_depth != 1 or request.chain != 1:
            raise InputError("answers go one at a time, from behind the messages that they answer")
        prepared = self._preparing(request)
        if not isinstance(prepared, ExchangingPass):
            raise InputError("this transport cannot answer messages")
        buffer = self._buffer()
        awaited = expect(buffer, request.seed, request.size, request.slots, 0)

        def answer() -> PassAnswer:
            return PassAnswer(elapsed_s=prepared.exchange(buffer, awaited, serves=False).elapsed_s)

        return answer

    def _preparing(self, request: PassRequest) -> PreparedPass:
        plan = Plan(
            operation=request.operation,
            size=request.size,
            slots=request.slots,
            queue_depth=request.queue_depth,
            chain=request.chain,
            timeout_s=request.timeout_s,
            base=request.base,
        )
        if plan not in self._prepared:
            if len(self._prepared) == _MOST_PREPARED:
                self._prepared.pop(next(iter(self._prepared))).close()
            self._prepared[plan] = self._prepare(plan)
        return self._prepared[plan]

    def _watching(self, request: PassRequest) -> Callable[[], PassAnswer]:
        size, buffer = request.size * request.slots, self._buffer()

        def compare() -> PassAnswer:
            started_s = time.perf_counter()
            # The end of the payload is what a flag would overtake: it is copied first.
            half = size // 2
            tail = bytes(buffer[request.base + half : request.base + size])
            head = bytes(buffer[request.base : request.base + half])
            elapsed_s = time.perf_counter() - started_s
            wrong = classify(memoryview(head + tail), request.seed)
            return PassAnswer(elapsed_s=elapsed_s, error=None if wrong is None else str(wrong))

        return compare
