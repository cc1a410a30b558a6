"""OTLP over HTTP (POST /v1/traces, protobuf or JSON, gzip): bounded connections, bodies and waiting."""

import logging
import socket
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

from kvdiag.derive.otlp_json import from_json
from kvdiag.errors import InputError, UnavailableError
from kvdiag_exporters.connections import CYCLE_S, BoundedConnections
from kvdiag_exporters.records.otlp import MOST_BYTES, Export, from_protobuf, unpack
from kvdiag_exporters.web_config import Web

_log = logging.getLogger(__name__)
DECODED_AT_ONCE = 1
"""Bodies that are unpacked and decoded at a time: what they unpack to is held in memory."""
DRAINED_BYTES = 1 << 20
"""A refused body up to this size is read all the same: else the connection's end could overtake the answer."""
PATH = "/v1/traces"
_PROTOBUF, _JSON = "application/x-protobuf", "application/json"

Accept = Callable[[Export], bool | None]
"""Returns False where there is no room for an export: its sender is asked to try again."""


class OtlpHttp:
    """Listens until `stop`; `address` is HOST:PORT as bound. `refused` counts connections beyond the limit, `overdue`
    ones that were cut for their slowness, `rejected` requests that were no export, or of nobody known to `web`.
    """

    def __init__(
        self, host: str, port: int, accept: Accept, most_bytes: int = MOST_BYTES, web: Web | None = None
    ) -> None:
        try:
            self._server = _Server(host, port, accept, most_bytes, web)
        except OSError as error:
            raise UnavailableError(
                f"records.otlp_http: cannot listen on {host}:{port}: {error.strerror or error}; choose another "
                "address (port 0: any free one)"
            ) from error
        bound_host, bound_port = self._server.server_address[:2]
        self.address = f"[{bound_host!s}]:{bound_port}" if ":" in str(bound_host) else f"{bound_host!s}:{bound_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.2,), name="otlp-http", daemon=True)

    @property
    def counts(self) -> dict[str, int]:
        server = self._server
        return {"refused": server.refused, "overdue": server.overdue, "rejected": server.rejected}

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        if self._thread.is_alive():
            self._server.shutdown()
        self._server.server_close()
        self._server.cut(float("inf"))


def _from_json(body: bytes) -> Export:
    spans = list(from_json(body))
    return Export(spans, len(body), len(spans))


class _Server(BoundedConnections, HTTPServer):
    request_queue_size = 128

    def __init__(self, host: str, port: int, accept: Accept, most_bytes: int, web: Web | None) -> None:
        self.accept, self.most_bytes, self.web = accept, most_bytes, web
        self.tls = None if web is None else web.context
        self.rejected = 0
        self.decoding = threading.BoundedSemaphore(DECODED_AT_ONCE)
        if ":" in host:
            self.address_family = socket.AF_INET6
        super().__init__((host, port), _Handler)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = CYCLE_S
    server: _Server

    def handle_one_request(self) -> None:
        self.server.new_cycle(self.connection)
        super().handle_one_request()

    def do_POST(self) -> None:
        web = self.server.web
        if web is not None and not web.allowed(self.headers.get("Authorization", "")):
            return self._refuse(401, "name and password, please")
        kind = self.headers.get_content_type()
        if self.path.partition("?")[0] != PATH:
            return self._refuse(404, f"only {PATH} is served here; metrics and logs are not taken")
        if kind not in (_PROTOBUF, _JSON):
            return self._refuse(415, f"content-type is {kind}; send {_PROTOBUF} or {_JSON}")
        length = self.headers.get("Content-Length", "")
        if not length.isdigit():
            return self._refuse(411, "there is no Content-Length; send the whole body at once")
        if len(length) > 15 or int(length) > self.server.most_bytes:
            return self._refuse(
                413, f"{length[:15]} bytes are more than {self.server.most_bytes}; send smaller batches"
            )
        body = self.rfile.read(int(length))
        if len(body) < int(length):
            self.close_connection = True
            self.server.rejected += 1
            return None
        try:
            with self.server.decoding:
                plain = unpack(body, self.headers.get("Content-Encoding", "").strip().lower(), self.server.most_bytes)
                export = _from_json(plain) if kind == _JSON else from_protobuf(plain)
                taken = self.server.accept(export)
        except InputError as error:
            return self._refuse(400, str(error), keep=True)
        if taken is False:
            return self._refuse(503, "too much at a time; send this again later", keep=True)
        return self._answer(200, kind, b"{}" if kind == _JSON else b"")

    def do_GET(self) -> None:
        self._refuse(405, f"POST {PATH}")

    def _refuse(self, status: int, why: str, *, keep: bool = False) -> None:
        """Answer with google.rpc.Status, as OTLP wants it; the unread body ends the connection."""
        self.server.rejected += 1
        if not keep:
            self.close_connection = True
            length = self.headers.get("Content-Length", "")
            if length.isdigit() and len(length) < 9 and int(length) <= DRAINED_BYTES:
                self.rfile.read(int(length))
        if self.headers.get_content_type() == _PROTOBUF:
            text = why.encode()[:127]
            return self._answer(status, _PROTOBUF, b"\x12" + bytes([len(text)]) + text)
        import msgspec

        return self._answer(status, _JSON, msgspec.json.encode({"message": why}))

    def _answer(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        if status == 401:
            self.send_header("WWW-Authenticate", "Basic")
        if status == 503:
            self.send_header("Retry-After", "1")
        for name, value in () if self.server.web is None else self.server.web.headers:
            self.send_header(name, value)
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  (the base class names it)
        _log.debug("%s %s", self.client_address[0], format % args)
