"""Reading a period from Prometheus: a small server for its answers, the real one for the whole way to a verdict."""

import json
import shutil
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvdiag.cli import main
from kvdiag.derive.engine_series import COUNTERS
from kvdiag.errors import InputError, UnavailableError, UsageError
from kvdiag.sources.prometheus import read_prometheus
from tests.attribution.cluster import START_S, Cluster, draw, run
from tests.attribution.histograms import histograms_of
from tests.attribution.recording import Recorder, record


@contextmanager
def server(answers: list[tuple[int, str]]) -> Iterator[tuple[str, list[dict[str, str]]]]:
    """Answer queries in turn (the last one again and again); yield the base URL and what was asked."""
    asked: list[dict[str, str]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            asked.append({name: values[0] for name, values in urllib.parse.parse_qs(body).items()})
            status, text = answers[min(len(asked), len(answers)) - 1]
            self.send_response(status)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002  the base class names it so
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as http:
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{http.server_port}", asked
        finally:
            http.shutdown()
            thread.join()


def _answer(*series: tuple[dict[str, str], list[tuple[float, str]]]) -> str:
    return json.dumps({"status": "success", "data": {"result": [{"metric": m, "values": v} for m, v in series]}})


def test_chunks_of_an_hour_are_joined_and_what_is_no_number_is_left_out() -> None:
    metric = {"__name__": "a_sum", "node": "p"}
    late = _answer((metric, [(7200.0, "3"), (7215.0, "NaN"), (7230.0, "4")]))
    early = _answer((metric, [(3700.0, "1"), (7200.0, "3")]), ({"__name__": "b"}, [(100.0, "1")]))
    with server([(200, _answer()), (200, late), (200, early)]) as (url, asked):
        (one,) = read_prometheus(url, ["a_sum", "b"], 3600.0, 7230.0)
    assert (one.name, one.labels) == ("a_sum", {"node": "p"})
    assert one.time_s.tolist() == [3700.0, 7200.0, 7230.0]
    assert one.value.tolist() == [1.0, 3.0, 4.0]
    # First, whether it answers at all.
    assert [query["time"] for query in asked] == ["7230.000", "7230.000", "3630.000"]
    assert asked[0]["query"] == "vector(1)[1s:1s]"
    assert asked[1]["query"] == '{__name__=~"a_sum|b"}[3600s]'


@pytest.mark.parametrize(
    ("status", "text", "error", "words"),
    [
        (
            400,
            json.dumps({"error": "query processing would load too many samples"}),
            UnavailableError,
            "too many samples",
        ),
        (404, "not here", UnavailableError, "HTTP 404"),
        (200, "<html>", InputError, "not that of a Prometheus server"),
        (200, json.dumps({"data": {}}), InputError, "not that of a Prometheus server"),
        (200, _answer(({"__name__": "a"}, [(1.0, "many")])), InputError, "not that of a Prometheus server"),
    ],
)
def test_other_answers_are_one_line(status: int, text: str, error: type[Exception], words: str) -> None:
    with server([(status, text)]) as (url, _), pytest.raises(error, match=words) as caught:
        read_prometheus(url, ["a"], 0.0, 10.0)
    assert "\n" not in str(caught.value)


def test_nobody_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(UnavailableError, match="is it the address of a Prometheus server"):
        read_prometheus(f"http://127.0.0.1:{port}", ["a"], 0.0, 10.0)


@pytest.mark.parametrize(
    ("url", "start", "end", "words"),
    [
        ("file:///etc/passwd", 0.0, 1.0, "not an http"),
        ("http://x", 2.0, 1.0, "is not before"),
        ("http://x", 0.0, float("nan"), "is not before"),
        ("http://x", 0.0, 1e6, "at most 24"),
    ],
)
def test_what_cannot_be_is_refused(url: str, start: float, end: float, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        read_prometheus(url, ["a"], start, end)


NAMES = {
    "queue_s": "vllm:request_queue_time_seconds",
    "kv_wait_s": "vllm:request_queue_time_seconds",
    "prefill_s": "vllm:request_prefill_time_seconds",
    "first_step_s": "vllm:request_prefill_time_seconds",
    "prompt_tokens": "vllm:request_prompt_tokens",
    "uncached_tokens": "vllm:request_prefill_kv_computed_tokens",
    "wire_s": "vllm:nixl_xfer_time_seconds",
    "post_s": "vllm:nixl_post_time_seconds",
    "bytes": "vllm:nixl_bytes_transferred",
    "descriptors": "vllm:nixl_num_descriptors",
}


def _exposition(world: Cluster, path: Path) -> None:
    """Write what vLLM and the exporter would have shown, as OpenMetrics with times, for promtool."""
    lines: list[tuple[str, str, float, float]] = []
    for one in histograms_of(world, run(world, draw(world))):
        node = one.prefill_node or one.decode_node
        name = NAMES.get(one.quantity)
        if name is None:
            continue
        labels = f'{{instance="{node}:8000",engine="0"}}'
        for part, values in (("sum", one.total), ("count", one.count)):
            lines += [(f"{name}_{part}", labels, t, v) for t, v in zip(one.time_s, values, strict=True)]
        if one.quantity == "bytes":
            name = "vllm:external_prefix_cache_hits_total"
            lines += [(name, labels, t, v) for t, v in zip(one.time_s, one.total, strict=True)]
    shown = {metric: name for name, (metric, scale) in reversed(COUNTERS.items()) if scale == 1.0}
    for series in record(world, Recorder(clocks_s=0.0))[0].series:
        if series.metric in shown and series.metric.startswith(("nic.", "reg.")):
            labels = f'{{node="{series.node}",device="mlx5_0"}}'
            points = zip(series.time_s[::15], series.value[::15], strict=True)
            lines += [(shown[series.metric], labels, t, v) for t, v in points]
    text = "".join(f"{name}{labels} {value:.9g} {at:.3f}\n" for name, labels, at, value in sorted(lines))
    path.write_text(text + "# EOF\n")


@contextmanager
def real(folder: Path, exposition: Path) -> Iterator[str]:
    if shutil.which("prometheus") is None or shutil.which("promtool") is None:
        pytest.skip("prometheus and promtool are not installed (Debian package prometheus)")
    made = ["promtool", "tsdb", "create-blocks-from", "openmetrics", str(exposition), str(folder / "data")]
    subprocess.run(made, check=True, capture_output=True)
    (folder / "prometheus.yml").write_text("global: {}\n")
    with socket.create_server(("127.0.0.1", 0)) as free:
        listen = f"127.0.0.1:{free.getsockname()[1]}"
    command = [
        "prometheus", f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address={listen}", "--log.level=warn", "--storage.tsdb.retention.time=50y",
    ]  # fmt: skip
    with (folder / "prometheus.log").open("w") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            yield f"http://{listen}"
        finally:
            process.terminate()
            process.wait(30)


def _wait_until_ready(base: str) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            urllib.request.urlopen(f"{base}/-/ready", timeout=5).close()
            return
        except (urllib.error.URLError, OSError):
            assert time.monotonic() < deadline
            time.sleep(0.1)


@pytest.mark.component
def test_a_real_prometheus_is_diagnosed_window_by_window(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    world = Cluster(seed=11, faults={"fabric.loss": 4.0}, rate=10)
    _exposition(world, tmp_path / "metrics.txt")
    with real(tmp_path, tmp_path / "metrics.txt") as base:
        _wait_until_ready(base)
        begin, end = f"{START_S:.0f}", f"{START_S + world.seconds:.0f}"
        arguments = ["diagnose", "--prometheus", base, "--start", begin, "--end", end, "--format", "json"]
        code = main([*arguments, "--incident-start", f"{START_S + world.start * world.seconds:.0f}"])
        document: dict[str, Any] = json.loads(capsys.readouterr().out)
        assert (document["verdict"]["cause"], code) == ("fabric.loss", 2)
        assert document["causes"][0]["nodes"] == ["d2"]
        assert any("decode: d0, d1, d2" in note for note in document["data"]["notes"])
        assert main(["diagnose", "--prometheus", base, "--start", "1000", "--end", "2000"]) == 3
        assert "no histogram of a stage of TTFT" in capsys.readouterr().err
    assert np.isclose(document["data"]["requests"], 3 * 3 * world.seconds / 15, rtol=0.1)
