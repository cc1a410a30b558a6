"""What exporters may answer, and what is said of it."""

import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kvdiag.errors import InputError, UnavailableError, UsageError
from kvdiag.sources.exposition import Access, access, base_url, parsed, read_exporter

METRICS = '# TYPE kvdiag_finding gauge\nkvdiag_finding{code="A"} 1\n# TYPE kvdiag_other gauge\nkvdiag_other 1\n'
WANTED = frozenset({"kvdiag_finding", "kvdiag_ttft_seconds"})
TLS = Path(__file__).parents[1] / "fixtures/tls"


def http(body: str, status: str = "200 OK") -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body.encode())}\r\n\r\n{body}".encode()


@contextmanager
def serving(answer: Callable[[socket.socket, bytes], None], tls: ssl.SSLContext | None = None) -> Iterator[str]:
    """Answer each connection by `answer`, which is given the request's first bytes; yield HOST:PORT."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    client, _ = server.accept()
                except OSError:
                    return
                with client:
                    try:
                        secured = client if tls is None else tls.wrap_socket(client, server_side=True)
                        answer(secured, secured.recv(4096))
                    except OSError:
                        continue  # the client had enough

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)
    thread.join(5)


def said(answer: Callable[[socket.socket, bytes], None], timeout_s: float = 5.0, way: Access | None = None) -> str:
    with serving(answer) as address, pytest.raises((UnavailableError, InputError)) as error:
        read_exporter(f"http://{address}", WANTED, timeout_s, way or Access())
    return str(error.value)


def by_path(client: socket.socket, request: bytes) -> None:
    client.sendall(http(METRICS) if b"/metrics" in request else http('{"findings": []}', "503 Not Ready"))


def test_metrics_wanted_and_health() -> None:
    with serving(by_path) as address:
        found = read_exporter(f"http://{address}", WANTED, 5.0, Access())
    assert [(one.name, one.labels, one.value) for one in found.points] == [("kvdiag_finding", (("code", "A"),), 1.0)]
    assert found.kinds == {"kvdiag_finding": "gauge"}
    assert found.health == {"findings": []}


def test_metrics_count_without_health() -> None:
    def only_metrics(client: socket.socket, request: bytes) -> None:
        client.sendall(http(METRICS) if b"/metrics" in request else b"garbage")

    with serving(only_metrics) as address:
        assert read_exporter(f"http://{address}", WANTED, 5.0, Access()).health == {}


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (http("nginx", "404 Not Found"), "HTTP 404 Not Found"),
        (http("", "401 Unauthorized"), "asks for a name and password: give --user and KVDIAG_PASSWORD"),
        (http("up 1\n"), "answers, but not with kvdiag's metrics: 'up 1'"),
        (http(""), "answers, but not with kvdiag's metrics: ''"),
        (http('kvdiag_finding{code="A 1\n'), "its metrics cannot be read: "),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "no HTTP answer (BadStatusLine); does it want https?"),
        (b"", "no HTTP answer (RemoteDisconnected); does it want https?"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 999\r\n\r\nkvdiag_", "its answer was cut off after 7 bytes"),
    ],
)
def test_what_is_no_exporters_answer_is_told(answer: bytes, expected: str) -> None:
    assert said(lambda client, _: client.sendall(answer)).startswith(expected)


def test_a_wrong_password_is_told_apart() -> None:
    way = Access(user="me", password="wrong")
    assert "another name or password" in said(lambda client, _: client.sendall(http("", "401 No")), way=way)


def test_one_that_hangs_or_trickles_is_given_up() -> None:
    def hang(client: socket.socket, _: bytes) -> None:
        client.recv(1)

    def trickle(client: socket.socket, _: bytes) -> None:
        client.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 99999\r\n\r\n")
        while True:
            client.sendall(b"#")
            time.sleep(0.02)

    for answer in (hang, trickle):
        assert said(answer, timeout_s=0.3) == "no complete answer within 0.3 s"


def test_nobody_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(UnavailableError, match="Connection refused"):
        read_exporter(f"http://127.0.0.1:{port}", WANTED, 5.0, Access())


def test_tls_and_its_troubles(tmp_path: Path) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(TLS / "server.pem", TLS / "server.key")
    with serving(by_path, context) as address:
        with pytest.raises(UnavailableError, match=r"its certificate is not trusted .*: give --tls-ca"):
            read_exporter(f"https://{address}", WANTED, 5.0, access(None, "", None, None, None))
        with pytest.raises(UnavailableError, match=r"does it want https\?"):
            read_exporter(f"http://{address}", WANTED, 5.0, Access())
    with serving(by_path) as address, pytest.raises(UnavailableError, match="does it speak plain http"):
        read_exporter(f"https://{address}", WANTED, 5.0, access(None, "", None, None, None))
    with pytest.raises(UsageError, match=r"--tls-ca .*none.pem: No such file"):
        access(None, "", tmp_path / "none.pem", None, None)
    (tmp_path / "empty.pem").touch()
    with pytest.raises(UsageError, match="--tls-ca"):
        access(None, "", tmp_path / "empty.pem", None, None)
    with pytest.raises(UsageError, match="--tls-cert"):
        access(None, "", None, tmp_path / "empty.pem", None)


def test_addresses() -> None:
    from kvdiag_exporters.config import DEFAULT_LISTEN

    assert base_url("node-7") == f"http://node-7:{DEFAULT_LISTEN.rpartition(':')[2]}"
    assert base_url("http://a:1/metrics") == "http://a:1"
    assert base_url("https://a/kv/") == "https://a/kv"
    assert base_url("http://[::1]:9846") == "http://[::1]:9846"
    for wrong in ("ftp://a", "http://", "http://a:b", "http://a:99999", "a b"):
        with pytest.raises(UsageError, match="is no address"):
            base_url(wrong)
    with pytest.raises(UsageError, match="KVDIAG_PASSWORD"):
        base_url("http://me:secret@a:1")


def test_only_what_is_wanted_is_parsed() -> None:
    points, kinds = parsed(METRICS, frozenset({"kvdiag_other"}))
    assert [one.name for one in points] == ["kvdiag_other"]
    assert kinds == {"kvdiag_other": "gauge"}


def test_a_key_with_a_passphrase_is_refused_without_asking_for_it() -> None:
    with pytest.raises(UsageError, match=r"--tls-cert .*server\.pem: the key is encrypted; take its passphrase off"):
        access(None, "", None, TLS / "server.pem", TLS / "locked.key")
