"""One-sided WRITE and READ over a TCP socket: the same calls as the RDMA path, for comparison and as a substitute."""

import hmac
import socket
import struct
import threading
import time
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Self

from kvdiag.errors import UnavailableError, UsageError
from kvdiag_probes import tcp_info

Block = tuple[int, int, int]
"""(local offset, remote offset, length), bytes."""

MAX_BLOCKS = 65536
MAX_CONNECTIONS = 64
KEY_BYTES = 32

_MAGIC = b"KVT1"
_REQUEST = struct.Struct("!BI")
_EXTENT = struct.Struct("!QQ")
_WELCOME = struct.Struct("!BQ")
_WRITE, _READ = 1, 2
_OK, _OUT_OF_RANGE, _MALFORMED, _WRONG_KEY = 0, 1, 2, 3
_REFUSALS = {
    _OUT_OF_RANGE: "a block lies outside its registered buffer",
    _MALFORMED: "it could not read the request (is the far end a kvdiag of the same version?)",
    _WRONG_KEY: "the session key is wrong",
}
_IOV_LIMIT = 512


class TcpTarget:
    """A threaded server that exposes one buffer to WRITE and READ of whoever presents `key` (at most KEY_BYTES).

    `idle_timeout_s` bounds every wait for a peer within its greeting and a request; between requests it may rest.
    """

    def __init__(
        self,
        buffer: memoryview | bytearray,
        host: str,
        port: int = 0,
        *,
        key: bytes = b"",
        idle_timeout_s: float = 60.0,
    ) -> None:
        self._buffer = memoryview(buffer).cast("B")
        self._key = key.ljust(KEY_BYTES, b"\0")
        self._idle_timeout_s = idle_timeout_s
        self._lock = threading.Lock()
        self._connections: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._closing = threading.Event()
        try:
            family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            self._listener = socket.create_server(address[:2], family=family)
        except OSError as error:
            raise UsageError(f"cannot listen on {host}:{port}: {error.strerror or error}; choose another") from error
        self.host, self.port = self._listener.getsockname()[:2]
        accepter = threading.Thread(target=self._accept, name=f"tcp-target-{self.port}", daemon=True)
        accepter.start()
        self._threads.append(accepter)

    def close(self) -> None:
        """Stop listening, cut every connection and wait for the threads; the buffer may be freed afterwards."""
        self._closing.set()
        with self._lock:
            for connection in (self._listener, *self._connections):
                _shut(connection)
        for thread in self._threads:
            thread.join(timeout=5)
        self._listener.close()
        self._buffer.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _accept(self) -> None:
        while not self._closing.is_set():
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                if self._closing.is_set() or len(self._connections) >= MAX_CONNECTIONS:
                    connection.close()
                    continue
                self._connections.add(connection)
                self._threads = [thread for thread in self._threads if thread.is_alive()]
                thread = threading.Thread(target=self._serve, args=(connection,), daemon=True)
                self._threads.append(thread)
                thread.start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.settimeout(self._idle_timeout_s)
            if self._greet(connection):
                while self._serve_one(connection):
                    pass
        except (OSError, EOFError):
            pass  # the peer went away: its side reports it
        finally:
            with self._lock:
                self._connections.discard(connection)
            connection.close()

    def _greet(self, connection: socket.socket) -> bool:
        hello = _receive(connection, len(_MAGIC) + KEY_BYTES)
        status = _OK
        if not hello.startswith(_MAGIC):
            status = _MALFORMED
        elif not hmac.compare_digest(hello[len(_MAGIC) :], self._key):
            status = _WRONG_KEY
        connection.sendall(_WELCOME.pack(status, len(self._buffer) if status == _OK else 0))
        return status == _OK

    def _serve_one(self, connection: socket.socket) -> bool:
        try:
            # Between requests a peer may rest for as long as whoever made this target lets it: `close` cuts it off.
            connection.settimeout(None)
            op, count = _REQUEST.unpack(_receive(connection, _REQUEST.size))
            connection.settimeout(self._idle_timeout_s)
        except EOFError:
            return False
        if op not in (_WRITE, _READ) or not 0 < count <= MAX_BLOCKS:
            return _refuse(connection, _MALFORMED)
        extents = tuple(_EXTENT.iter_unpack(_receive(connection, count * _EXTENT.size)))
        if any(offset + length > len(self._buffer) for offset, length in extents):
            return _refuse(connection, _OUT_OF_RANGE)
        views = [self._buffer[offset : offset + length] for offset, length in extents]
        if op == _WRITE:
            for view in views:
                _receive_into(connection, view)
            connection.sendall(bytes([_OK]))
        else:
            _send(connection, [memoryview(bytes([_OK])), *views])
        return True


class TcpInitiator:
    """The near end of one connection to a TcpTarget; `target_bytes` is the size of the buffer exposed there."""

    def __init__(self, connection: socket.socket, target_bytes: int, timeout_s: float) -> None:
        self._connection = connection
        self._timeout_s = timeout_s
        self._pending: list[tuple[int, list[memoryview]]] = []
        self.target_bytes = target_bytes
        self.peer = "{}:{}".format(*connection.getpeername()[:2])

    @classmethod
    def connect(cls, host: str, port: int, timeout_s: float, *, key: bytes = b"") -> Self:
        """Connect and present the key; UnavailableError when refused or not answered within `timeout_s` seconds."""
        where = f"{host}:{port}"
        try:
            connection = socket.create_connection((host, port), timeout=timeout_s)
        except OSError as error:
            raise UnavailableError(
                f"{where}: {error.strerror or error}; check that the target runs and the port is open"
            ) from error
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.sendall(_MAGIC + key.ljust(KEY_BYTES, b"\0"))
            status, target_bytes = _WELCOME.unpack(_receive(connection, _WELCOME.size))
        except (OSError, EOFError) as error:
            connection.close()
            raise UnavailableError(f"{where}: no welcome from the target ({_why(error)}); is it busy?") from error
        if status != _OK:
            connection.close()
            raise UnavailableError(f"{where}: the target refused: {_REFUSALS.get(status, f'status {status}')}")
        return cls(connection, target_bytes, timeout_s)

    def write(self, blocks: Sequence[Block], local: memoryview) -> None:
        """Copy local blocks into the target's buffer; return when the target has acknowledged all of them."""
        self.post_write(blocks, local)
        self.wait()

    def read(self, blocks: Sequence[Block], local: memoryview) -> None:
        """Copy the target's blocks into `local`; return when all data have arrived."""
        self.post_read(blocks, local)
        self.wait()

    def post_write(self, blocks: Sequence[Block], local: memoryview) -> None:
        """Send one WRITE without waiting for its acknowledgement; `wait` reaps the oldest posted operation."""
        views = _views(blocks, local)
        self._send([_header(_WRITE, blocks), *views])
        self._pending.append((_WRITE, []))

    def post_read(self, blocks: Sequence[Block], local: memoryview) -> None:
        """Ask for one READ without waiting for its data; `wait` reaps the oldest posted operation."""
        views = _views(blocks, local)
        self._send([_header(_READ, blocks)])
        self._pending.append((_READ, views))

    def wait(self) -> None:
        """Wait for the oldest posted operation; UnavailableError when refused, cut, or silent for `timeout_s`."""
        _, views = self._pending.pop(0)
        deadline_s = time.monotonic() + self._timeout_s
        try:
            (status,) = _receive(self._connection, 1, deadline_s)
            if status == _OK:
                for view in views:
                    _receive_into(self._connection, view, deadline_s)
        except (OSError, EOFError) as error:
            raise self._lost(error) from error
        if status != _OK:
            raise UnavailableError(f"{self.peer}: the target refused: {_REFUSALS.get(status, f'status {status}')}")

    def moved_bytes(self) -> tuple[int, int]:
        """Return (bytes the target acknowledged, bytes received) by the kernel's count, framing included."""
        return tcp_info.moved_bytes(self._connection)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _send(self, buffers: list[memoryview]) -> None:
        try:
            _send(self._connection, buffers, time.monotonic() + self._timeout_s)
        except OSError as error:
            raise self._refusal() or self._lost(error) from error

    def _refusal(self) -> UnavailableError | None:
        # A target that refuses a WRITE answers before it has read the payload, and then resets the connection.
        try:
            self._connection.settimeout(0.2)
            answer = self._connection.recv(1)
        except OSError:
            return None
        if not answer or answer[0] == _OK:
            return None
        return UnavailableError(f"{self.peer}: the target refused: {_REFUSALS.get(answer[0], f'status {answer[0]}')}")

    def _lost(self, error: Exception) -> UnavailableError:
        return UnavailableError(f"{self.peer}: the transfer broke off ({_why(error)}); check the target and the link")


def _header(op: int, blocks: Sequence[Block]) -> memoryview:
    if not 0 < len(blocks) <= MAX_BLOCKS:
        raise UsageError(f"a request holds 1 to {MAX_BLOCKS} blocks, not {len(blocks)}")
    extents = b"".join(_EXTENT.pack(remote, length) for _, remote, length in blocks)
    return memoryview(_REQUEST.pack(op, len(blocks)) + extents)


def _views(blocks: Sequence[Block], local: memoryview) -> list[memoryview]:
    for offset, _, length in blocks:
        if offset < 0 or length < 0 or offset + length > len(local):
            raise UsageError(f"block at {offset} of {length} bytes lies outside the local buffer of {len(local)} bytes")
    return [local[offset : offset + length] for offset, _, length in blocks]


def _send(connection: socket.socket, buffers: Iterable[memoryview], deadline_s: float | None = None) -> None:
    left = [view for view in buffers if len(view)]
    first = 0
    while first < len(left):
        _limit(connection, deadline_s)
        sent = connection.sendmsg(left[first : first + _IOV_LIMIT])
        while first < len(left) and sent >= len(left[first]):
            sent -= len(left[first])
            first += 1
        if sent:
            left[first] = left[first][sent:]


def _receive(connection: socket.socket, size: int, deadline_s: float | None = None) -> bytes:
    data = bytearray(size)
    _receive_into(connection, memoryview(data), deadline_s)
    return bytes(data)


def _receive_into(connection: socket.socket, view: memoryview, deadline_s: float | None = None) -> None:
    while len(view):
        _limit(connection, deadline_s)
        received = connection.recv_into(view)
        if not received:
            raise EOFError
        view = view[received:]


def _limit(connection: socket.socket, deadline_s: float | None) -> None:
    if deadline_s is not None:
        left_s = deadline_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        connection.settimeout(left_s)


def _refuse(connection: socket.socket, status: int) -> bool:
    connection.sendall(bytes([status]))
    _shut(connection, socket.SHUT_WR)
    connection.settimeout(1.0)
    for _ in range(64):  # let the peer read the answer before the reset that closing over unread data sends
        if not connection.recv(65536):
            break
    return False


def _shut(connection: socket.socket, how: int = socket.SHUT_RDWR) -> None:
    try:
        connection.shutdown(how)
    except OSError:
        return


def _why(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "timed out"
    if isinstance(error, EOFError):
        return "closed by the peer"
    return getattr(error, "strerror", None) or str(error)
