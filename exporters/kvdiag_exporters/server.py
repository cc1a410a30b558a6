"""The HTTP endpoints: /metrics, /healthz, /readyz and a landing page."""

import errno
import gzip
import json
import logging
import socket
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer
from wsgiref.types import StartResponse, WSGIEnvironment

from prometheus_client import make_wsgi_app

from kvdiag.errors import KvdiagError, UnavailableError, UsageError
from kvdiag_exporters.connections import BoundedConnections
from kvdiag_exporters.exposition import all_samples, registry
from kvdiag_exporters.scraper import Scraper
from kvdiag_exporters.text_format import CONTENT_TYPE, TextFormat
from kvdiag_exporters.web_config import Web

_log = logging.getLogger(__name__)
_IDLE_S = 15.0
MOST_CONNECTIONS = 256
"""At a time; beyond it the slowest make room: connections.py."""
_GZIP_LEVEL = 1
"""Level 9 takes ten times the time for text a quarter smaller; a scraper is near."""
_PAGE = b"""<!doctype html><title>kvdiag exporter</title><h1>kvdiag exporter</h1>
<p><a href="/metrics">/metrics</a> for Prometheus, <a href="/healthz">/healthz</a> how each collector fares.</p>
"""


class HttpServer:
    """Serves until `stop`; `address` is HOST:PORT as bound. `recording` says how the recorder fares, `web` whether
    with TLS and for whom.
    """

    def __init__(
        self,
        host: str,
        port: int,
        scraper: Scraper,
        monotonic_s: Callable[[], float],
        recording: Callable[[], Mapping[str, object] | None] = lambda: None,
        web: Web | None = None,
    ) -> None:
        self._scraper = scraper
        self._monotonic_s = monotonic_s
        self._recording = recording
        self._web = web
        self._documents: dict[str, Callable[[str], str]] = {}
        self._metrics = make_wsgi_app(registry(scraper, monotonic_s))
        self._text = TextFormat()
        self._rendering = threading.Lock()
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        server_class = type("Server", (_Server,), {"address_family": family})
        try:
            self._server: _Server = server_class((host, port), _Handler)
        except (socket.gaierror, UnicodeError):  # a name that no resolver knows, or that cannot be one
            raise UsageError(
                f"{host!r} is no address and no name known here; give an address of this host, or 127.0.0.1"
            ) from None
        except OSError as error:
            raise _cannot_listen(host, port, error) from error
        self._server.set_app(self._guard)
        self._server.tls = None if web is None else web.context
        bound_host, bound_port = self._server.server_address[:2]
        shown = f"[{bound_host!s}]" if family == socket.AF_INET6 else str(bound_host)
        self.address = f"{shown}:{bound_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.1,), name="http", daemon=True)

    def add_document(self, path: str, build: Callable[[str], str]) -> None:
        """Serve a JSON document, built from the query string; its UsageError is answered as a bad request."""
        self._documents[path] = build

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Take no new request; those being answered end with the process at the latest."""
        if self._thread.is_alive():
            self._server.shutdown()
        self._server.server_close()

    def _guard(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """Answer whoever may ask, with the headers that are asked for."""
        if self._web is None:
            return self._answer(environ, start_response)
        extra = self._web.headers

        def start(status: str, headers: list[tuple[str, str]], *rest: Any) -> Any:
            return start_response(status, [*headers, *extra], *rest)

        if not self._web.allowed(environ.get("HTTP_AUTHORIZATION", "")):
            body = b"name and password, please\n"
            start("401 Unauthorized", [("WWW-Authenticate", "Basic"), ("Content-Length", str(len(body)))])
            return [body]
        return self._answer(environ, start)

    def _answer(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        if environ["REQUEST_METHOD"] not in ("GET", "HEAD"):
            return _reply(start_response, "405 Method Not Allowed", "text/plain", b"only GET and HEAD\n")
        path = environ.get("PATH_INFO", "")
        if path == "/metrics":
            return self._exposition(environ, start_response)
        if path == "/healthz":
            status, body = self._health()
            return _reply(start_response, status, "application/json", body)
        if path == "/readyz":
            # A collector that fails is no reason to send nobody here: the others' series are what there is.
            ready = self._scraper.last is not None
            status = "200 OK" if ready else "503 Service Unavailable"
            return _reply(start_response, status, "text/plain", b"ready\n" if ready else b"nothing collected yet\n")
        if path in self._documents:
            try:
                text = self._documents[path](environ.get("QUERY_STRING", ""))
            except UsageError as error:
                return _reply(start_response, "400 Bad Request", "text/plain; charset=utf-8", f"{error}\n".encode())
            return _reply(start_response, "200 OK", "application/json", text.encode())
        if path in ("", "/"):
            return _reply(start_response, "200 OK", "text/html; charset=utf-8", _PAGE)
        return _reply(start_response, "404 Not Found", "text/plain", b"try /metrics\n")

    def _exposition(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """Answer in plain text quickly; OpenMetrics and chosen names are prometheus-client's."""
        if "openmetrics" in environ.get("HTTP_ACCEPT", "") or environ.get("QUERY_STRING"):
            with self._scraper.precedence:
                answer: Iterable[bytes] = self._metrics(environ, start_response)
            return answer
        with self._scraper.precedence, self._rendering:
            collection = self._scraper.collect()
            body = self._text.render(all_samples(collection, self._monotonic_s()))
        headers = [("Content-Type", CONTENT_TYPE)]
        if "gzip" in environ.get("HTTP_ACCEPT_ENCODING", ""):
            body = gzip.compress(body, _GZIP_LEVEL)
            headers.append(("Content-Encoding", "gzip"))
        start_response("200 OK", [*headers, ("Content-Length", str(len(body)))])
        return [b"" if environ["REQUEST_METHOD"] == "HEAD" else body]

    def _health(self) -> tuple[str, bytes]:
        last = self._scraper.last
        now_s = self._monotonic_s()
        document = {
            "ready": last is not None,
            "last_collection_age_s": None if last is None else round(now_s - last.monotonic_s, 3),
            "recorder": self._recording(),
            "findings": [
                {
                    "code": one.code,
                    "severity": one.severity.value,
                    "node": one.host,
                    "subject": one.subject,
                    "summary": one.summary,
                    "action": one.action,
                }
                for one in (last.findings if last else ())
            ],
            "collectors": {
                name: {
                    "success": outcome.error == "",
                    "error": outcome.error,
                    "duration_s": round(outcome.duration_s, 6),
                    "data_age_s": None if outcome.good_s is None else round(now_s - outcome.good_s, 3),
                    "missing": outcome.missing,
                }
                for name, outcome in (last.outcomes if last else {}).items()
            },
        }
        status = "200 OK" if last is not None else "503 Service Unavailable"
        return status, json.dumps(document, indent=2).encode() + b"\n"


class _Server(BoundedConnections, WSGIServer):
    # Answers are short; the kernel holds further scrapers meanwhile.
    request_queue_size = 128
    most_connections = MOST_CONNECTIONS

    def server_bind(self) -> None:
        super().server_bind()
        self.setup_environ()


class _Handler(WSGIRequestHandler):
    timeout = _IDLE_S
    # An answer is sent at once: unbuffered, each header would be a system call and a packet of its own.
    wbufsize = 1 << 16

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  (the base class names it)
        _log.debug("%s %s", self.client_address[0], format % args)


def _reply(start_response: StartResponse, status: str, kind: str, body: bytes) -> list[bytes]:
    start_response(status, [("Content-Type", kind), ("Content-Length", str(len(body)))])
    return [body]


def _cannot_listen(host: str, port: int, error: OSError) -> KvdiagError:
    if error.errno == errno.EADDRINUSE:
        return UnavailableError(
            f"{host}:{port} is taken by another program; stop it, or choose another port (0: any free one)"
        )
    if error.errno == errno.EADDRNOTAVAIL:
        return UsageError(f"{host} is no address of this host; choose one of its own, or 127.0.0.1")
    return UnavailableError(f"cannot listen on {host}:{port}: {error.strerror or error}")
