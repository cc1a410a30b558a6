"""A fake engine: a recorded exposition whose counters grow by a factor, served well or in every bad way."""

import http.client
import re
import socket
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from tests.exporters.chaos.truth import Factor

MODES = ("hang", "garbage", "binary", "early end", "status 500", "drip", "endless", "cut line", "reset")
_TYPE = re.compile(r"# TYPE (\S+) (\S+)")
_LONGEST_S = 30.0


class FakeEngine:
    """Listens on `port`; `mode` is "well" or one of MODES; `kill` and `revive` end and begin the whole server."""

    def __init__(self, text: str) -> None:
        self.factor = Factor()
        self.mode = "well"
        self.woken = threading.Event()
        self._lines = _parsed(text)
        self._server: ThreadingHTTPServer | None = None
        self.port = 0
        self.revive()

    def revive(self) -> None:
        """Listen, on the same port as before."""
        server = _server(self)
        self.port = int(server.server_address[1])
        self._server = server
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()

    def kill(self) -> None:
        assert self._server is not None
        self._server.shutdown()
        self._server.server_close()
        self._server = None

    def close(self) -> None:
        self.woken.set()
        if self._server is not None:
            self.kill()

    def advance(self, value: int) -> None:
        """Let the counters stand at a factor."""
        self.factor.begin(value)
        self.factor.end()

    def exposition(self) -> str:
        factor = self.factor.now
        return "".join(f"{head} {value * factor:.17g}\n" if value is not None else head for head, value in self._lines)


def _parsed(text: str) -> list[tuple[str, float | None]]:
    """Return each line as it is, or a counter's or a histogram's as what stands before its value, and the value."""
    kinds: dict[str, str] = {}
    found: list[tuple[str, float | None]] = []
    for line in text.splitlines():
        told = _TYPE.match(line)
        if told:
            kinds[told[1]] = told[2]
        name = re.match(r"[a-zA-Z_:][a-zA-Z0-9_:]*", line)
        kind = "" if name is None else _kind(name[0], kinds)
        head, _, value = line.rpartition(" ")
        found.append((head, float(value)) if kind in ("counter", "histogram", "summary") else (line + "\n", None))
    return found


def _kind(name: str, kinds: dict[str, str]) -> str:
    for stem in (name, *(name.removesuffix(suffix) for suffix in ("_bucket", "_count", "_sum", "_total"))):
        if stem in kinds:
            return kinds[stem]
    return ""


def _server(engine: FakeEngine) -> ThreadingHTTPServer:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            with suppress(OSError):
                _answer(self, engine)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        block_on_close = False
        request_queue_size = 64

        def handle_error(self, request: object, client_address: object) -> None:
            pass

    return Server(("127.0.0.1", engine.port), Handler)


def _answer(handler: BaseHTTPRequestHandler, engine: FakeEngine) -> None:
    mode, out = engine.mode, handler.wfile
    if mode == "hang":
        engine.woken.wait(_LONGEST_S)
        handler.close_connection = True
        return
    if mode == "reset":
        handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        handler.connection.close()
        return
    if mode == "binary":
        out.write(bytes(range(128, 256)) * 8)
        return
    if mode == "status 500":
        handler.send_error(500)
        return
    body = engine.exposition().encode()
    if mode == "garbage":
        body = b"<html>\xff\xfe not metrics </html>" * 20
    elif mode == "cut line":  # a whole answer by its length that ends within a name: an engine that died while writing
        body = body[: body.rfind(b"{") + 3]
    handler.send_response(200)
    if mode != "endless":
        handler.send_header("Content-Length", str(len(body)))
    handler.end_headers()
    if mode == "early end":
        out.write(body[: len(body) // 2])
    elif mode == "drip":
        for byte in body:
            out.write(bytes([byte]))
            if engine.woken.wait(0.2) or engine.mode != "drip":
                return
    elif mode == "endless":
        while engine.mode == "endless":
            out.write(b"# padding\n" * 8192)
    else:
        out.write(body)


def recorded(folder: Path, name: str) -> str:
    """Return a recorded exposition."""
    return (folder / f"{name}.txt").read_text()


def get(address: str, path: str = "/metrics", timeout_s: float = 20.0, accept: str = "text/plain") -> tuple[int, str]:
    """Return status and body of an answer of the exporter."""
    connection = http.client.HTTPConnection(address, timeout=timeout_s)
    try:
        connection.request("GET", path, headers={"Accept": accept})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()
