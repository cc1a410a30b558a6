"""The endpoints, on a real socket."""

import gzip
import http.client
from collections.abc import Iterable, Iterator

import pytest

from kvdiag.errors import KvdiagError
from kvdiag_exporters.catalog import Metric, Sample
from kvdiag_exporters.scraper import Scraper
from kvdiag_exporters.server import HttpServer
from tests.exporters.host import StillClock

ONE = Metric(name="kvdiag_one", kind="gauge", help="One.", labels=("of",))
LINE = b'kvdiag_one{of="a"} 1.0\n'


class Fixed:
    missing: tuple[str, ...] = ()

    def collect(self) -> Iterable[Sample]:
        return [ONE.sample(1.0, "a")]


@pytest.fixture
def server() -> Iterator[HttpServer]:
    clock = StillClock()
    found = HttpServer("127.0.0.1", 0, Scraper({"fixed": Fixed()}, clock), clock.monotonic_s)
    found.start()
    yield found
    found.stop()


def ask(
    server: HttpServer, path: str, method: str = "GET", **headers: str
) -> tuple[int, http.client.HTTPMessage, bytes]:
    connection = http.client.HTTPConnection(server.address, timeout=10)
    connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
    answer = connection.getresponse()
    try:
        return answer.status, answer.headers, answer.read()
    finally:
        connection.close()


@pytest.mark.parametrize(
    ("host", "code", "said"),
    [
        ("192.0.2.1", 64, "192.0.2.1 is no address of this host; choose"),
        ("no-such-name.invalid", 64, "no name known here"),
    ],
)
def test_an_address_that_is_not_here_is_a_mistake_of_the_configuration(host: str, code: int, said: str) -> None:
    clock = StillClock()
    with pytest.raises(KvdiagError, match=said) as caught:
        HttpServer(host, 9846, Scraper({}, clock), clock.monotonic_s)
    assert caught.value.exit_code == code


def test_plain_text_unless_something_else_is_asked_for(server: HttpServer) -> None:
    status, headers, body = ask(server, "/metrics")
    assert (status, headers["Content-Type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
    assert LINE in body
    assert not body.endswith(b"# EOF\n")


def test_compressed_where_the_scraper_takes_it(server: HttpServer) -> None:
    status, headers, body = ask(server, "/metrics", Accept_Encoding="gzip")
    assert (status, headers["Content-Encoding"]) == (200, "gzip")
    assert LINE in gzip.decompress(body)


def test_openmetrics_where_the_scraper_prefers_it(server: HttpServer) -> None:
    _, headers, body = ask(server, "/metrics", Accept="application/openmetrics-text;version=1.0.0")
    assert headers["Content-Type"].startswith("application/openmetrics-text")
    assert body.endswith(b"# EOF\n")


def test_a_head_request_has_no_body(server: HttpServer) -> None:
    status, headers, body = ask(server, "/metrics", method="HEAD")
    assert (status, body) == (200, b"")
    assert int(headers["Content-Length"]) > len(LINE)


def test_other_methods_and_paths(server: HttpServer) -> None:
    assert ask(server, "/metrics", method="POST")[0] == 405
    assert ask(server, "/nowhere")[0] == 404
    assert b"/metrics" in ask(server, "/")[2]
