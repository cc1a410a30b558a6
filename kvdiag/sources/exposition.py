"""A kvdiag exporter's own answers over HTTP: its metrics and its health, bounded in time and size."""

import base64
import http.client
import json
import ssl
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from kvdiag.errors import InputError, UnavailableError, UsageError
from kvdiag.sources.certificates import load_pair

MOST_BYTES = 64 << 20
_PIECE = 1 << 16
Labels = tuple[tuple[str, str], ...]


class Point(NamedTuple):
    """One sample: the exposed name, its labels sorted by name, its value."""

    name: str
    labels: Labels
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One answer: when it was whole (monotonic), its samples, what are counters and histograms, and the health."""

    monotonic_s: float
    points: tuple[Point, ...]
    kinds: Mapping[str, str]
    health: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """How to be let in: basic authentication and TLS."""

    user: str | None = None
    password: str = ""
    tls: ssl.SSLContext | None = None


def access(user: str | None, password: str, ca: Path | None, cert: Path | None, key: Path | None) -> Access:
    """Return what exporters are asked with; UsageError names the flag whose file cannot be used."""
    try:
        tls = ssl.create_default_context(cafile=None if ca is None else str(ca))
    except (OSError, ValueError) as error:
        raise UsageError(f"--tls-ca {ca}: {_reason(error)}; give a file of PEM certificates") from None
    if cert is not None:
        try:
            load_pair(tls, cert, key)
        except (OSError, ValueError) as error:
            raise UsageError(f"--tls-cert {cert}: {_reason(error)}") from None
    return Access(user=user, password=password, tls=tls)


def base_url(text: str) -> str:
    """Return an exporter's address as http://HOST:PORT; UsageError where it is none, or has a password in it."""
    url = (text if "://" in text else f"http://{text}").removesuffix("/metrics").rstrip("/")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise UsageError(f"URL: {text!r} is no address; write http://HOST:PORT") from None
    if parts.username is not None or parts.password is not None:
        raise UsageError(
            "URL: a name and password in it would show in the process list; give --user and KVDIAG_PASSWORD"
        )
    if parts.scheme not in ("http", "https") or not parts.hostname or any(one.isspace() for one in url):
        raise UsageError(f"URL: {text!r} is no address of an exporter; write http://HOST:PORT or https://HOST:PORT")
    if port is None and parts.scheme == "http":
        url += ":9846" if not parts.path else ""
    return url


def read_exporter(url: str, wanted: frozenset[str], timeout_s: float, way: Access) -> Reading:
    """Return the samples of the metrics wanted and the health of the exporter at `url`.

    UnavailableError where it does not answer as it should within `timeout_s`, InputError where it answers something
    else than kvdiag's metrics; both in one short line, without the address.
    """
    deadline_s = time.monotonic() + timeout_s
    text = _get(url, "/metrics", deadline_s, timeout_s, way)
    points, kinds = parsed(text, wanted)
    try:
        health = json.loads(_get(url, "/healthz", deadline_s, timeout_s, way))
    except (UnavailableError, ValueError):
        health = None  # the metrics are what counts; findings are among them
    return Reading(
        monotonic_s=time.monotonic(), points=points, kinds=kinds, health=health if isinstance(health, dict) else {}
    )


def parsed(text: str, wanted: frozenset[str]) -> tuple[tuple[Point, ...], dict[str, str]]:
    """Return the samples of the metrics wanted and their types; InputError where there is none of kvdiag's.

    Only their lines are parsed: an exposition has ten times as many.
    """
    from prometheus_client.parser import text_string_to_metric_families

    lines, seen = [], 0
    for line in text.split("\n"):
        if line.startswith("# TYPE "):
            name = line.split(" ", 3)[2]
            kept = name in wanted
        elif line.startswith("#"):
            continue
        else:
            name = line.partition("{")[0].partition(" ")[0]
            seen += name.startswith("kvdiag_")
            kept = name in wanted or name.rpartition("_")[0] in wanted
        if kept:
            lines.append(line)
    if not seen:
        raise InputError(f"answers, but not with kvdiag's metrics: {text.strip()[:40]!r}")
    points, kinds = [], {}
    try:
        for family in text_string_to_metric_families("\n".join([*lines, ""])):
            for sample in family.samples:
                points.append(Point(sample.name, tuple(sorted(sample.labels.items())), float(sample.value)))
                kinds[sample.name] = family.type
    except (ValueError, KeyError, IndexError) as error:
        raise InputError(f"its metrics cannot be read: {str(error)[:80]}") from None
    return tuple(points), kinds


def _get(url: str, path: str, deadline_s: float, timeout_s: float, way: Access) -> str:
    parts = urlsplit(url)
    left_s = max(0.05, deadline_s - time.monotonic())
    host, port = parts.hostname or "", parts.port
    connection = (
        http.client.HTTPSConnection(host, port, timeout=left_s, context=way.tls)
        if parts.scheme == "https"
        else http.client.HTTPConnection(host, port, timeout=left_s)
    )
    headers = {"Accept": "text/plain;version=0.0.4", "Connection": "close"}
    if way.user is not None:
        headers["Authorization"] = "Basic " + base64.b64encode(f"{way.user}:{way.password}".encode()).decode()
    # The socket's own limit is for each read: one byte a second would never meet it.
    cut = threading.Timer(left_s, _shut, [connection])
    cut.daemon = True
    cut.start()
    try:
        connection.request("GET", parts.path + path, headers=headers)
        response = connection.getresponse()
        if response.status == 401:
            how = "--user and KVDIAG_PASSWORD" if way.user is None else "another name or password"
            raise UnavailableError(f"asks for a name and password: give {how}")
        if response.status not in (200, 503 if path == "/healthz" else 200):
            raise UnavailableError(f"HTTP {response.status} {response.reason}")
        return _body(response)
    except (OSError, http.client.HTTPException, ValueError) as error:
        if time.monotonic() >= deadline_s:
            raise UnavailableError(f"no complete answer within {timeout_s:g} s") from None
        raise UnavailableError(_explained(error, parts.scheme)) from None
    finally:
        cut.cancel()
        connection.close()


def _body(response: http.client.HTTPResponse) -> str:
    body = bytearray()
    while piece := response.read(_PIECE):
        body += piece
        if len(body) > MOST_BYTES:
            raise UnavailableError(f"more than {MOST_BYTES >> 20} MiB of metrics")
    if response.length:  # what was promised and did not come; read() does not complain
        raise http.client.IncompleteRead(bytes(body), response.length)
    return body.decode(errors="replace")


def _shut(connection: http.client.HTTPConnection) -> None:
    if connection.sock is not None:
        try:
            connection.sock.shutdown(2)
        except OSError:
            return  # it was closed meanwhile


def _explained(error: Exception, scheme: str) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted ({error.verify_message}): give --tls-ca"
    if isinstance(error, ssl.SSLError):
        asks = "CERTIFICATE_REQUIRED" in str(error) or "HANDSHAKE_FAILURE" in str(error)
        return f"TLS: {error.reason}" + (": give --tls-cert and --tls-key" if asks else "; does it speak plain http?")
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, http.client.IncompleteRead):
        return f"its answer was cut off after {len(error.partial)} bytes"
    if isinstance(error, (http.client.HTTPException, ConnectionResetError)) and scheme == "http":
        return f"no HTTP answer ({type(error).__name__}); does it want https?"
    return _reason(error)


def _reason(error: Exception) -> str:
    return str(getattr(error, "strerror", None) or str(error) or type(error).__name__)
