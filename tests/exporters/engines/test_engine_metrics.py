"""Engines that answer, hang, restart and talk nonsense, on a real socket."""

import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from kvdiag.sources.base import Context
from kvdiag_exporters.collectors import engine_metrics
from kvdiag_exporters.collectors.base import Engine, Setup
from kvdiag_exporters.collectors.engine_metrics import EngineMetricsCollector, create
from kvdiag_exporters.engines.fetch import fetch
from tests.exporters.host import StillClock

RUNNING = "# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running 4\n"
Answer = Callable[[BaseHTTPRequestHandler], None]


class Engines:
    """A server whose paths each behave in a way of their own; `go_on` lets go of everyone who waits."""

    def __init__(self) -> None:
        self.go_on = threading.Event()
        self.text = RUNNING
        self.asked = 0
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.asked += 1
                getattr(outer, self.path.strip("/"))(self)

            def log_message(self, *args: Any) -> None:
                return

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, request: Any, client_address: Any) -> None:
                return

        self.server = Server(("127.0.0.1", 0), Handler)
        self.base = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def send(self, handler: BaseHTTPRequestHandler, body: bytes, length: int | None = None, status: int = 200) -> None:
        handler.send_response(status)
        handler.send_header("Content-Length", str(len(body) if length is None else length))
        handler.end_headers()
        handler.wfile.write(body)

    def good(self, handler: BaseHTTPRequestHandler) -> None:
        self.send(handler, self.text.encode())

    def hang(self, handler: BaseHTTPRequestHandler) -> None:
        self.go_on.wait(30)
        self.send(handler, RUNNING.encode())

    def trickle(self, handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.end_headers()
        while not self.go_on.wait(0.02):
            handler.wfile.write(b"# ")
            handler.wfile.flush()

    def short(self, handler: BaseHTTPRequestHandler) -> None:
        self.send(handler, RUNNING.encode(), length=10_000)
        handler.close_connection = True

    def binary(self, handler: BaseHTTPRequestHandler) -> None:
        self.send(handler, bytes(range(256)))

    def page(self, handler: BaseHTTPRequestHandler) -> None:
        self.send(handler, b"<html>starting</html>")

    def busy(self, handler: BaseHTTPRequestHandler) -> None:
        self.send(handler, b"later", status=503)

    def other(self, handler: BaseHTTPRequestHandler) -> None:
        self.send(handler, b"# TYPE python_info gauge\npython_info 1\n")

    def rude(self, handler: BaseHTTPRequestHandler) -> None:
        handler.wfile.write(b"what?\r\n\r\n")


@pytest.fixture
def engines() -> Iterator[Engines]:
    found = Engines()
    yield found
    found.go_on.set()
    found.server.shutdown()
    found.server.server_close()


def collect(collector: EngineMetricsCollector) -> dict[tuple[str, ...], object]:
    return {(one.metric.name, *one.labels[1:]): one.value for one in collector.collect()}


def setup(**metrics: tuple[str, ...]) -> Setup:
    found = tuple(Engine(name=name, node="n", role="decode", metrics=urls) for name, urls in metrics.items())
    return Setup(node="n", engines=found)


UP = "kvdiag_engine_metrics_up"
REQUESTS = "kvdiag_engine_requests"


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("hang", "no complete answer within 1 s"),
        ("trickle", "no complete answer within 1 s"),
        ("short", "the answer ended 9933 bytes early"),
        ("binary", "no Prometheus exposition: it is no UTF-8 text"),
        ("page", "begins with no metric's name"),
        ("busy", "HTTP status 503 Service Unavailable"),
        ("other", "metrics of no known engine or library"),
        ("rude", "no HTTP answer: BadStatusLine"),
    ],
)
def test_an_engine_that_cannot_be_read_is_down_and_hides_no_other(engines: Engines, path: str, why: str) -> None:
    bad, good = f"{engines.base}/{path}", f"{engines.base}/good"
    collector = EngineMetricsCollector(setup(bad=(bad,), good=(good,)), timeout_s=1.0)
    found = collect(collector)
    assert found[UP, "bad", "decode", bad] == 0
    assert found[UP, "good", "decode", good] == 1
    assert found[REQUESTS, "good", "decode", "vllm", "", "running", "request", "measured"] == 4
    (missing,) = collector.missing
    assert missing.startswith(f"engine bad: {bad}: ")
    assert why in missing


def test_nobody_listening_is_down_until_somebody_does(engines: Engines) -> None:
    url = f"{engines.base}/good"
    collector = EngineMetricsCollector(setup(a=(url,)), timeout_s=2)
    engines.server.shutdown()
    engines.server.server_close()
    assert collect(collector) == {(UP, "a", "decode", url): 0}
    assert "Connection refused" in collector.missing[0]


def test_one_that_was_late_holds_up_nobody_until_it_answers(engines: Engines, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"{engines.base}/hang"
    collector = EngineMetricsCollector(setup(a=(url,)), timeout_s=0.05)
    (target,) = collector._targets
    target._timeout_s = 20  # the reading itself goes on
    assert collect(collector)[UP, "a", "decode", url] == 0
    collector._timeout_s = 600
    monkeypatch.setattr(engine_metrics, "LATE_S", 0.01)
    assert collect(collector)[UP, "a", "decode", url] == 0
    assert target._thread is not None
    assert target._thread.is_alive()
    engines.go_on.set()
    target._thread.join(20)
    assert not target._late
    assert collect(collector)[UP, "a", "decode", url] == 1


def test_one_reading_at_a_time_however_often_it_is_asked(engines: Engines, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_metrics, "LATE_S", 5.0)
    collector = EngineMetricsCollector(setup(a=(f"{engines.base}/hang",)), timeout_s=0.05)
    collector._targets[0]._timeout_s = 20  # the reading itself goes on
    for _ in range(5):
        collect(collector)
    assert engines.asked == 1
    engines.go_on.set()
    collector._timeout_s = 5
    assert collect(collector)[UP, "a", "decode", f"{engines.base}/hang"] == 1
    assert collector.missing == ()


def test_an_engine_is_read_no_more_often_than_its_interval(engines: Engines) -> None:
    engine = Engine(name="a", node="n", role="decode", metrics=(f"{engines.base}/good",), metrics_interval_s=10)
    clock = StillClock()
    collector = EngineMetricsCollector(Setup(node="n", engines=(engine,), context=Context(clock=clock)), timeout_s=5)
    first = collect(collector)
    assert collect(collector) == first
    assert engines.asked == 1
    clock.now_s += 10
    engines.text = RUNNING.replace("4", "5")
    assert collect(collector)[REQUESTS, "a", "decode", "vllm", "", "running", "request", "measured"] == 5
    assert engines.asked == 2


def test_two_addresses_of_an_engine_give_each_series_once(engines: Engines) -> None:
    urls = (f"{engines.base}/good", f"{engines.base}/good?again")
    collector = EngineMetricsCollector(setup(a=urls[:1] * 2))
    samples = [one for one in collector.collect() if one.metric.name == REQUESTS]
    assert len(samples) == 1


def test_an_unknown_name_of_a_newer_version_is_counted_and_named(engines: Engines) -> None:
    engines.text = RUNNING + "# TYPE vllm:nixl_next_thing gauge\nvllm:nixl_next_thing 1\n"
    collector = EngineMetricsCollector(setup(a=(f"{engines.base}/good",)))
    assert collect(collector)["kvdiag_engine_unmapped_names", "a", "decode", "vllm"] == 1
    assert collector.missing == ("engine a: vllm names that no map explains: vllm:nixl_next_thing",)


def test_too_much_is_refused(engines: Engines) -> None:
    with pytest.raises(ValueError, match="more than 10 bytes"):
        fetch(f"{engines.base}/good", 2, most_bytes=10)


def test_without_an_address_there_is_no_collector(tmp_path: Path) -> None:
    assert create(setup(a=())) is None
