"""Connections of a threading server: bounded in number and in time, with TLS spoken in the connection's own thread."""

import logging
import socket
import ssl
import threading
import time
from dataclasses import dataclass
from socketserver import ThreadingMixIn
from typing import Any

_log = logging.getLogger(__name__)
CYCLE_S = 30.0
"""For one request and the idle time before it: an SDK sends every 5 s by default, OTEL_BSP_SCHEDULE_DELAY."""
STALLED_S = 1.0
"""A request that takes longer makes room for a new connection where there is no other: most take milliseconds."""


@dataclass(slots=True, eq=False)
class _Held:
    """A connection: the socket that speaks now (the secured one, with TLS) and since when, and its last moment."""

    speaking: socket.socket
    since_s: float
    deadline_s: float


class BoundedConnections(ThreadingMixIn):
    """Before a server class of socketserver. Counts connections: `refused` beyond `most_connections`, `overdue` ones
    that were cut for their slowness.

    At the limit the one that has stalled longest makes room, so that clients that say nothing keep nobody out.
    """

    daemon_threads = True
    block_on_close = False
    most_connections = 64
    tls: ssl.SSLContext | None = None

    def __init__(self, *arguments: Any, **named: Any) -> None:
        self.refused = self.overdue = 0
        self._held: dict[socket.socket, _Held] = {}
        self._speaking: dict[socket.socket, _Held] = {}
        self._lock = threading.Lock()
        super().__init__(*arguments, **named)

    def server_bind(self) -> None:
        """Bind, without HTTPServer's question to the resolver for this host's name, which can take seconds."""
        server: Any = self
        server.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.socket.bind(server.server_address)
        server.server_address = server.socket.getsockname()
        server.server_name, server.server_port = str(server.server_address[0]), int(server.server_address[1])

    def verify_request(self, request: Any, client_address: Any) -> bool:  # noqa: ARG002  (the base class names them)
        """Return whether there is room for a connection."""
        now_s = time.monotonic()
        with self._lock:
            late = None
            if len(self._held) >= self.most_connections:
                late = min(self._held.values(), key=lambda one: one.since_s)
                if now_s - late.since_s < STALLED_S:
                    self.refused += 1
                    return False
                late.since_s = late.deadline_s = float("inf")  # cut once; its thread takes it off
                self.overdue += 1
            self._held[request] = self._speaking[request] = _Held(request, now_s, now_s + CYCLE_S)
        if late is not None:
            _cut(late.speaking)
        return True

    def new_cycle(self, connection: socket.socket) -> None:
        """Give a connection CYCLE_S from now for its next request."""
        with self._lock:
            held = self._speaking.get(connection)
            if held is not None and held.deadline_s < float("inf"):
                held.since_s = time.monotonic()
                held.deadline_s = held.since_s + CYCLE_S

    def finish_request(self, request: Any, client_address: Any) -> None:
        """Answer in the connection's own thread, the TLS handshake included: a slow one holds up nobody."""
        base: Any = super()
        if self.tls is None:
            base.finish_request(request, client_address)
            return
        request.settimeout(CYCLE_S)
        with self.tls.wrap_socket(request, server_side=True, do_handshake_on_connect=False) as secured:
            with self._lock:
                held = self._held[request]
                held.speaking = secured
                self._speaking[secured] = held
                too_late = held.deadline_s == float("inf")
            if not too_late:
                secured.do_handshake()
                base.finish_request(secured, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            held = self._held.pop(request, None)
            self._speaking.pop(request, None)
            if held is not None:
                self._speaking.pop(held.speaking, None)
        base: Any = super()
        base.shutdown_request(request)

    def service_actions(self) -> None:
        self.cut(time.monotonic())

    def cut(self, now_s: float) -> None:
        """Cut the connections whose time is over, so that their threads end."""
        with self._lock:
            late = [one for one in self._held.values() if one.deadline_s < now_s]
            for one in late:
                one.since_s = one.deadline_s = float("inf")
            self.overdue += len(late)
        for one in late:
            _cut(one.speaking)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002  (the base class names them)
        _log.debug("request from %s failed", client_address, exc_info=True)


def _cut(connection: socket.socket) -> None:
    try:
        # Of the plain socket: a secured one would first say so to a peer that does not listen.
        socket.socket.shutdown(connection, socket.SHUT_RDWR)
    except OSError:
        _log.debug("a slow connection was gone already")
