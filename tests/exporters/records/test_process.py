"""The exporter as a process: spans in, records, metrics, a bundle and an end in order out."""

import json
import re
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import jsonschema
import pytest

from kvdiag.report.json import published_schema
from kvdiag.sources.bundle import read_bundle
from tests.exporters.records.configuration import configuration
from tests.exporters.records.otlp_export import SPANS, request, rows

pytestmark = pytest.mark.component

CONFIG = configuration(
    interval_s=0.1,
    tables='[recorder]\npath = "bundle"\n',
    records='otlp_grpc = "127.0.0.1:0"\nwindow_s = 86400\nsettle_s = 0.2\nattribution_interval_s = 0.2\n',
)


def get(url: str, **headers: str) -> str:
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=10) as answer:
        text: str = answer.read().decode()
        return text


def test_spans_are_joined_served_and_recorded_and_what_waits_is_not_lost(tmp_path: Path) -> None:
    path = tmp_path / "exporter.toml"
    path.write_text(CONFIG)
    command = [sys.executable, "-m", "kvdiag", "exporter", "--config", str(path)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            line = process.stderr.readline()
            served = re.search(r"serving (http://[^/]+)/metrics; otlp_http on (\S+); otlp_grpc on \S+;", line)
            assert served is not None, line
            spans = rows(SPANS)
            body = request(spans[:-1]).SerializeToString()
            headers = {"Content-Type": "application/x-protobuf"}
            with urllib.request.urlopen(
                urllib.request.Request(f"http://{served[2]}/v1/traces", data=body, headers=headers), timeout=10
            ) as answer:
                assert answer.status == 200
            deadline = time.monotonic() + 30
            document: dict[str, list[object]] = {"requests": []}
            while len(document["requests"]) < 11:
                assert time.monotonic() < deadline, document
                document = json.loads(get(f"{served[1]}/api/records"))
                time.sleep(0.1)
            jsonschema.validate(document, published_schema("kvdiag.records-1"))
            text = get(f"{served[1]}/metrics", Accept="application/openmetrics-text; version=1.0.0")
            assert re.search(r'kvdiag_ttft_seconds_bucket\{.*\} \S+ # \{.*trace_id="[0-9a-f]{32}"', text)
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=30) == 0
        finally:
            process.kill()
    bundle = read_bundle(tmp_path / "bundle")
    # The request whose decode side never came has no TTFT: it is in the file, and a note says that it was left out.
    assert len(bundle.requests) == 11
    assert [note for note in bundle.notes if "without ttft_s" in note] != []
    recorded = [json.loads(one) for one in (tmp_path / "bundle/requests.jsonl").read_text().splitlines()]
    assert len(recorded) == 12
    assert recorded[-1]["missing"] == ["nothing from the decode side: recording ended"]
