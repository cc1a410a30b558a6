"""A real Prometheus scrapes a running exporter and answers questions about it."""

import json
import shutil
import socket
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.exporters.test_cli import FEW_S, exporter, get

pytestmark = pytest.mark.component

CONFIG = """
global: {{scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s}}
rule_files: ["{folder}/rules/*.yml"]
scrape_configs:
  - job_name: {job}
    static_configs: [{{targets: ["{target}"]}}]
"""


@contextmanager
def prometheus(folder: Path, target: str, job: str = "kvdiag") -> Iterator[str]:
    """Run Prometheus on a free port with one target and the rules below `folder`; yield its base URL."""
    if shutil.which("prometheus") is None:
        pytest.skip("prometheus is not installed (Debian package prometheus)")
    (folder / "prometheus.yml").write_text(CONFIG.format(target=target, job=job, folder=folder))
    with socket.create_server(("127.0.0.1", 0)) as free:
        listen = f"127.0.0.1:{free.getsockname()[1]}"
    command = [
        "prometheus", f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address={listen}", "--log.level=warn",
    ]  # fmt: skip
    with (folder / "prometheus.log").open("w") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            yield f"http://{listen}"
        finally:
            process.terminate()
            process.wait(FEW_S)


def ask(base: str, query: str) -> list[dict[str, Any]]:
    """Return the result of an instant query; waits until Prometheus has an answer that is not empty."""
    deadline = time.monotonic() + FEW_S
    url = f"{base}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
    while True:
        try:
            with urllib.request.urlopen(url, timeout=FEW_S) as answer:
                document = json.load(answer)
            if document["data"]["result"]:
                found: list[dict[str, Any]] = document["data"]["result"]
                return found
        except OSError:
            pass  # it is still starting
        assert time.monotonic() < deadline, query
        time.sleep(0.2)


def test_prometheus_scrapes_it_and_answers(tmp_path: Path) -> None:
    (tmp_path / "requests.jsonl").write_text(
        "".join(
            json.dumps({"request_id": str(i), "arrival_s": 1.0, "ttft_s": 0.02 * i, "wire_s": 0.01, "decode_node": "d"})
            + "\n"
            for i in range(1, 101)
        )
    )
    engine = '[[engines]]\nname = "demo"\nnode = "d"\nrecords = "requests.jsonl"\n'
    with exporter(tmp_path, engine) as (_, url), prometheus(tmp_path, url.removeprefix("http://")) as base:
        (up,) = ask(base, 'up{job="kvdiag"} == 1')
        assert up["metric"]["instance"] == url.removeprefix("http://")
        (count,) = ask(base, 'kvdiag_ttft_seconds_count{decode_node="d"}')
        assert float(count["value"][1]) == 100
        (mean,) = ask(base, "kvdiag_ttft_seconds_sum / kvdiag_ttft_seconds_count")
        assert float(mean["value"][1]) == pytest.approx(1.01)
        (stage,) = ask(base, 'kvdiag_transfer_stage_seconds_bucket{stage="wire",le="0.01"}')
        assert float(stage["value"][1]) == 100
        collectors = ask(base, "kvdiag_collector_success == 1")
        assert {"netdev", "records", "exporter_self"} <= {one["metric"]["collector"] for one in collectors}
        assert ask(base, "scrape_samples_scraped > 0")
        with urllib.request.urlopen(f"{base}/api/v1/targets/metadata?limit=500", timeout=FEW_S) as answer:
            kinds = {one["metric"]: one["type"] for one in json.load(answer)["data"]}
        assert kinds["kvdiag_ttft_seconds"] == "histogram"
        # Prometheus asks for OpenMetrics, where a counter's family goes without its suffix.
        assert kinds["kvdiag_netdev_receive_bytes"] == "counter"


def test_promtool_finds_nothing_to_complain_about_in_the_running_one(tmp_path: Path) -> None:
    if shutil.which("promtool") is None:
        pytest.skip("promtool is not installed (Debian package prometheus)")
    with exporter(tmp_path, "") as (_, url):
        text = get(f"{url}/metrics")[1]
    done = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
