"""TLS, client certificates and passwords, on a real socket; and every mistake by name."""

import base64
import http.client
import ssl
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kvdiag.errors import InputError
from kvdiag_exporters.scraper import Scraper
from kvdiag_exporters.server import HttpServer
from kvdiag_exporters.web_config import MOST_REMEMBERED, Web, load
from tests.exporters.host import StillClock

TLS = Path(__file__).parents[1] / "fixtures/tls"
HASH = "$2b$04$FMISDVV1oI4m9ULfLuG04uqlIj76msIAYzCNd7i7DA1XHis1R0AQ2"
"""bcrypt of "right", the same in every process: test names are made of it."""
Serve = Callable[[str], HttpServer]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    servers = []

    def start(text: str) -> HttpServer:
        clock = StillClock()
        server = HttpServer("127.0.0.1", 0, Scraper({}, clock), clock.monotonic_s, web=load(written(tmp_path, text)))
        server.start()
        servers.append(server)
        return server

    yield start
    for server in servers:
        server.stop()


def written(folder: Path, text: str) -> Path:
    for file in TLS.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    path = folder / "web.yml"
    path.write_text(text)
    return path


def ask(server: HttpServer, tls: ssl.SSLContext | None = None, **headers: str) -> tuple[int, http.client.HTTPMessage]:
    if tls is None:
        connection = http.client.HTTPConnection(server.address, timeout=10)
    else:
        connection = http.client.HTTPSConnection(server.address, timeout=10, context=tls)
    try:
        connection.request("GET", "/metrics", headers=headers)
        answer = connection.getresponse()
        answer.read()
        return answer.status, answer.headers
    finally:
        connection.close()


def login(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def test_an_empty_file_asks_for_nothing(serve: Serve) -> None:
    assert ask(serve(""))[0] == 200


def test_only_who_knows_the_password_is_answered(serve: Serve) -> None:
    server = serve(f"basic_auth_users:\n  prom: {HASH}\n")
    status, headers = ask(server)
    assert (status, headers["WWW-Authenticate"]) == (401, "Basic")
    assert ask(server, Authorization=login("prom", "right"))[0] == 200
    for wrong in (
        login("prom", "wrong"),
        login("else", "right"),
        login("prom", ""),
        "Bearer x",
        "Basic !",
        "Basic",
        "",
    ):
        assert ask(server, Authorization=wrong)[0] == 401, wrong


def test_every_path_is_guarded(serve: Serve) -> None:
    server = serve(f"basic_auth_users:\n  prom: {HASH}\n")
    for path in ("/", "/healthz", "/readyz", "/api/records", "/nowhere"):
        connection = http.client.HTTPConnection(server.address, timeout=10)
        connection.request("GET", path)
        assert connection.getresponse().status == 401, path
        connection.close()


def test_a_login_is_checked_once_and_the_memory_of_it_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    web = load(written(tmp_path, f"basic_auth_users:\n  prom: {HASH}\n"))
    checked = []
    check = Web._check

    def counted(self: Web, user: str, password: str) -> bool:
        checked.append(user)
        return check(self, user, password) if user == "prom" else False

    monkeypatch.setattr(Web, "_check", counted)
    assert all(web.allowed(login("prom", "right")) for _ in range(5))
    assert checked == ["prom"]
    for number in range(2 * MOST_REMEMBERED):
        web.allowed(login(f"user{number}", "x"))
    assert len(web._remembered) <= MOST_REMEMBERED
    assert web.allowed(login("prom", "right"))


def test_tls_and_headers(serve: Serve) -> None:
    server = serve(
        "tls_server_config:\n  cert_file: server.pem\n  key_file: server.key\n"
        "http_server_config:\n  http2: true\n  headers:\n    X-Content-Type-Options: nosniff\n"
    )
    status, headers = ask(server, ssl.create_default_context(cafile=str(TLS / "ca.pem")))
    assert (status, headers["X-Content-Type-Options"]) == (200, "nosniff")
    with pytest.raises((OSError, http.client.HTTPException)):
        ask(server)
    with pytest.raises(ssl.SSLError):
        ask(server, ssl.create_default_context())
    old = ssl.create_default_context(cafile=str(TLS / "ca.pem"))
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        old.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises((ssl.SSLError, OSError)):
        ask(server, old)


def test_a_client_that_never_ends_its_handshake_holds_up_nobody(serve: Serve) -> None:
    import socket

    server = serve("tls_server_config:\n  cert_file: server.pem\n  key_file: server.key\n")
    host, port = server.address.split(":")
    with socket.create_connection((host, int(port))):
        time.sleep(0.05)
        assert ask(server, ssl.create_default_context(cafile=str(TLS / "ca.pem")))[0] == 200


def test_client_certificates(serve: Serve) -> None:
    server = serve(
        "tls_server_config:\n  cert_file: server.pem\n  key_file: server.key\n"
        "  client_auth_type: RequireAndVerifyClientCert\n  client_ca_file: ca.pem\n"
    )
    known = ssl.create_default_context(cafile=str(TLS / "ca.pem"))
    with pytest.raises((OSError, http.client.HTTPException)):
        ask(server, known)
    known.load_cert_chain(TLS / "client.pem", TLS / "client.key")
    assert ask(server, known)[0] == 200


@pytest.mark.parametrize(("text", "why"), [
    ("basic_auth_users: {prom: secret}", "basic_auth_users[...]: give the bcrypt hash of a password"),
    (f"basic_auth_users: {{prom: {HASH.replace('$04$', '$31$')}}}", "of cost 4 to 17"),
    ('http_server_config: {headers: {X-A: "a\\r\\nSet-Cookie: b"}}', "headers[...]: give one line of ASCII characters"),
    ("http_server_config: {headers: {X-A: ж}}", "headers[...]: give one line of ASCII characters"),
    ("http_server_config: {headers: {'X A:': b}}", "headers: a name in it: give the name of a header"),
    ("http_server_config: {headers: {Content-Length: '3'}}", "that the exporter does not set itself"),
    ("tls_server_config: {cert_file: a, key_file: b, min_version: TLS13, max_version: TLS12}",
     "min_version TLS13 is above max_version TLS12"),
    ("[" * 5000, "not YAML: maximum recursion depth"),
    ("basic_auth_user: {}", "unknown field `basic_auth_user`; did you mean `basic_auth_users`?"),
    ("tls_server_config: {cert_file: server.pem}", "tls_server_config: Object missing required field `key_file`"),
    ("tls_server_config: {cert_file: no.pem, key_file: server.key}",
     "no.pem, server.key: no certificate with its key: No such"),
    ("tls_server_config: {cert_file: server.pem, key_file: client.key}",
     "client.key does not belong to the certificate "),
    ("tls_server_config: {cert_file: server.pem, key_file: server.key, client_auth_type: RequestClientCert}",
     "client_auth_type: Invalid enum value 'RequestClientCert'; give one of NoClientCert,"),
    ("tls_server_config: {cert_file: server.pem, key_file: server.key, client_auth_type: VerifyClientCertIfGiven}",
     "client_ca_file is needed for VerifyClientCertIfGiven"),
    ("a: [", "not YAML: while parsing"),
    ("- 1", "Expected `object`, got `array`"),
])  # fmt: skip
def test_a_mistake_is_told_by_file_and_field(tmp_path: Path, text: str, why: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(InputError) as caught:
        load(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert why in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file"):
        load(tmp_path / "none.yml")


def test_a_key_with_a_passphrase_is_refused_without_asking_for_it(tmp_path: Path) -> None:
    path = written(tmp_path, "tls_server_config: {cert_file: server.pem, key_file: locked.key}")
    with pytest.raises(InputError, match=r"server\.pem, locked\.key: .*the key is encrypted; take its passphrase off"):
        load(path)
