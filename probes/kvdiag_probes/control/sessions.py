"""An agent's sessions: one exposed buffer each, bounded in number and size, and freed when nobody asks any more."""

import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from kvdiag.errors import InputError, UnavailableError
from kvdiag_probes import pattern
from kvdiag_probes.control.messages import (
    FillRequest,
    OpenAnswer,
    OpenRequest,
    PassAnswer,
    PassRequest,
    ReceiveRequest,
    ServeRequest,
    VerifyAnswer,
    VerifyRequest,
)
from kvdiag_probes.corruption import classify


class Target(Protocol):
    """What one session holds: a buffer that the peer can reach. `close` frees it and cuts the peer off.

    `push` and `pull` are as a data path has them; the next four raise InputError where the transport has no such
    thing.
    """

    @property
    def buffer(self) -> memoryview: ...

    def push(self, start: int, stop: int) -> None: ...

    def pull(self, start: int, stop: int) -> None: ...

    def receive(self, request: ReceiveRequest) -> None: ...

    def reap(self, request: VerifyRequest) -> str | None:
        """Return what is wrong with the immediates that must have come, or None."""
        ...

    def serve(self, request: ServeRequest) -> None: ...

    def arm(self, request: PassRequest) -> None: ...

    def collect(self) -> PassAnswer: ...

    def describe(self, session: str) -> OpenAnswer: ...

    def close(self) -> None: ...


_UNUSED_S = 5.0
"""A probe that lives uses its session more often than that, but for a transfer under way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a peer may ask for at most; `max_buffer_bytes` counts all sessions together."""

    max_buffer_bytes: int = 1 << 30
    max_sessions: int = 8
    session_idle_s: float = 60.0


@dataclass(slots=True)
class _Session:
    target: Target
    size: int
    last_used_s: float
    lock: threading.Lock = field(default_factory=threading.Lock)


class Sessions:
    """Thread-safe. `open_target` makes a request's target, given this end's address on the control channel."""

    def __init__(
        self,
        open_target: Callable[[OpenRequest, str], Target],
        limits: Limits,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.limits = limits
        self._open_target = open_target
        self._clock = clock
        self._lock = threading.Lock()
        self._sessions: dict[str, _Session] = {}
        self._opening_sizes: list[int] = []

    def __len__(self) -> int:
        return len(self._sessions)

    def open(self, request: OpenRequest, local_address: str) -> OpenAnswer:
        """Make a session; UnavailableError where a limit is reached, and whatever making the target raises."""
        with self._reserved(request.size):
            target = self._open_target(request, local_address)
            name = secrets.token_hex(16)
            with self._lock:
                self._sessions[name] = _Session(target, request.size, self._clock())
        return target.describe(name)

    def fill(self, name: str, request: FillRequest) -> None:
        """Write the pattern into the session's buffer; InputError for an unknown session or too large a size."""
        with self._used(name, request.offset + request.size) as target:
            with target.buffer[request.offset : request.offset + request.size] as buffer:
                pattern.fill(buffer, request.seed)
            target.push(request.offset, request.offset + request.size)

    def verify(self, name: str, request: VerifyRequest) -> VerifyAnswer:
        """Digest the session's buffer and compare it with the pattern; InputError as for `fill`."""
        with self._used(name, request.offset + request.size) as target:
            problem = target.reap(request) if request.immediates else None
            target.pull(request.offset, request.offset + request.size)
            with target.buffer[request.offset : request.offset + request.size] as buffer:
                wrong = classify(buffer, request.seed, request.block, request.stale)
                mismatch = problem if wrong is None else str(wrong)
                return VerifyAnswer(digest=pattern.digest(buffer), mismatch=mismatch)

    def receive(self, name: str, request: ReceiveRequest) -> None:
        """Post receives for messages with immediate data; InputError for an unknown session."""
        with self._used(name, 0) as target:
            target.receive(request)

    def serve(self, name: str, request: ServeRequest) -> None:
        """Progress the session's transport for a while; InputError for an unknown session."""
        with self._used(name, 0) as target:
            target.serve(request)

    def arm(self, name: str, request: PassRequest) -> None:
        """Get a pass ready that starts at the initiator's flag; InputError for an unknown session or a bad pass."""
        with self._used(name, 0) as target:
            target.arm(request)

    def collect(self, name: str) -> PassAnswer:
        """Wait for the end of the pass and return how it went; InputError where there is none."""
        with self._used(name, 0) as target:
            return target.collect()

    def close(self, name: str) -> None:
        """Free a session; InputError for an unknown one."""
        with self._lock:
            session = self._sessions.pop(name, None)
        if session is None:
            raise InputError(_unknown(name))
        with session.lock:
            session.target.close()

    def reap(self) -> int:
        """Free every session that was idle for longer than the limit; return how many."""
        oldest_s = self._clock() - self.limits.session_idle_s
        with self._lock:
            idle = [n for n, s in self._sessions.items() if s.last_used_s < oldest_s and not s.lock.locked()]
        for name in idle:
            self._close_quietly(name)
        return len(idle)

    def close_all(self) -> None:
        """Free every session."""
        with self._lock:
            names = list(self._sessions)
        for name in names:
            self._close_quietly(name)

    def _close_quietly(self, name: str) -> None:
        try:
            self.close(name)
        except InputError:
            return  # its owner closed it in the meantime

    def _unused(self) -> str:
        """Say what is held by sessions that nobody uses, those of killed probes; the lock is held."""
        now_s, limit_s = self._clock(), self.limits.session_idle_s
        idle = [(now_s - one.last_used_s, one.size) for one in self._sessions.values() if not one.lock.locked()]
        idle = [(idle_s, size) for idle_s, size in idle if idle_s >= _UNUSED_S]
        if not idle:
            return ""
        freed_s = max(0.0, limit_s - max(idle_s for idle_s, _ in idle))
        return (
            f" ({sum(size for _, size in idle)} bytes are held by {len(idle)} sessions that nobody has used for "
            f"{_UNUSED_S:g} s or more, of killed probes perhaps; the first is freed in {freed_s:.0f} s)"
        )

    @contextmanager
    def _reserved(self, size: int) -> Iterator[None]:
        limits = self.limits
        with self._lock:
            count = len(self._sessions) + len(self._opening_sizes)
            held = sum(session.size for session in self._sessions.values()) + sum(self._opening_sizes)
            if count >= limits.max_sessions:
                raise UnavailableError(
                    f"all {limits.max_sessions} sessions are taken{self._unused()}: wait, or raise the agent's "
                    "--max-sessions"
                )
            if held + size > limits.max_buffer_bytes:
                raise UnavailableError(
                    f"{size} bytes asked for, {limits.max_buffer_bytes - held} of {limits.max_buffer_bytes} left"
                    f"{self._unused()}: use a smaller --size or --queue-depth, or raise the agent's --max-buffer"
                )
            self._opening_sizes.append(size)
        try:
            yield
        finally:
            with self._lock:
                self._opening_sizes.remove(size)

    @contextmanager
    def _used(self, name: str, size: int) -> Iterator[Target]:
        with self._lock:
            session = self._sessions.get(name)
        if session is None:
            raise InputError(_unknown(name))
        if size > session.size:
            raise InputError(f"{size} bytes asked for, the session's buffer holds {session.size}")
        with session.lock:
            if name not in self._sessions:
                raise InputError(_unknown(name))
            try:
                yield session.target
            finally:
                session.last_used_s = self._clock()


def _unknown(name: str) -> str:
    return f"no session {name[:40]!r}: it was closed, or freed because it was idle for too long"
