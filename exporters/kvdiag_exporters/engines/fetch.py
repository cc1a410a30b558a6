"""Fetching an engine's metrics over HTTP, bounded in time and size whatever the other side does."""

import http.client
import socket
import threading
from urllib.parse import urlsplit

MOST_BYTES = 32 << 20
"""A vLLM engine's exposition is about 100 kB per data-parallel rank."""

_PIECE = 1 << 16


def fetch(url: str, timeout_s: float, most_bytes: int = MOST_BYTES) -> str:
    """Return the body at `url` within `timeout_s` altogether; OSError or ValueError says in one line what failed."""
    parts = urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.hostname or "", parts.port, timeout=timeout_s)
    late = threading.Event()

    def cut() -> None:
        late.set()
        if connection.sock is not None:
            try:
                connection.sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                return  # it was closed meanwhile

    # The socket's own limit is for each read: one byte a second would never meet it.
    timer = threading.Timer(timeout_s, cut)
    timer.daemon = True
    timer.start()
    try:
        target = parts.path or "/metrics"
        connection.request(
            "GET",
            f"{target}?{parts.query}" if parts.query else target,
            headers={"Accept": "text/plain;version=0.0.4", "Accept-Encoding": "identity", "Connection": "close"},
        )
        return _body(connection.getresponse(), most_bytes)
    except http.client.HTTPException as error:
        raise OSError(_late(timeout_s) if late.is_set() else f"no HTTP answer: {type(error).__name__}") from None
    except TimeoutError:
        raise OSError(_late(timeout_s)) from None
    except OSError as error:
        raise OSError(_late(timeout_s) if late.is_set() else (error.strerror or str(error))) from None
    finally:
        timer.cancel()
        connection.close()


def _late(timeout_s: float) -> str:
    return f"no complete answer within {timeout_s:g} s"


def _body(response: http.client.HTTPResponse, most_bytes: int) -> str:
    if response.status != 200:
        raise OSError(f"HTTP status {response.status} {response.reason}".rstrip())
    body = bytearray()
    while piece := response.read(_PIECE):
        body += piece
        if len(body) > most_bytes:
            raise ValueError(f"more than {most_bytes} bytes")
    if response.length:
        raise OSError(f"the answer ended {response.length} bytes early")
    try:
        return body.decode()
    except UnicodeDecodeError:
        raise ValueError("no Prometheus exposition: it is no UTF-8 text") from None
