"""The command as a person or a service manager runs it."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import jsonschema
import pytest

from kvdiag.cli import main
from kvdiag.report.json import published_schema
from kvdiag.sources.bundle import read_bundle

COMMAND = [sys.executable, "-m", "kvdiag", "exporter"]
FEW_S = 60
"""A limit that only a hang reaches, on however busy a machine."""


@contextmanager
def exporter(folder: Path, text: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run the exporter with a configuration that is given its address file; yield the process and http://HOST:PORT."""
    config, address = folder / "exporter.toml", folder / "address"
    config.write_text(f'listen = "127.0.0.1:0"\naddress_file = "{address}"\n{text}')
    with subprocess.Popen([*COMMAND, "--config", str(config)], stderr=subprocess.PIPE, text=True) as process:
        try:
            deadline = time.monotonic() + FEW_S
            while not address.exists():
                assert process.poll() is None, process.stderr and process.stderr.read()
                assert time.monotonic() < deadline
                time.sleep(0.05)
            yield process, f"http://{address.read_text().strip()}"
        finally:
            process.kill()


def get(url: str, **headers: str) -> tuple[str, str]:
    """Return content type and body."""
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=FEW_S) as answer:
        return answer.headers["Content-Type"], answer.read().decode()


def value(text: str, series: str) -> float:
    (line,) = [line for line in text.splitlines() if line.startswith(series + " ")]
    return float(line.split()[-1])


@pytest.mark.component
def test_it_serves_and_records_and_ends_when_asked_to(tmp_path: Path) -> None:
    records = tmp_path / "requests.jsonl"
    row = '{{"request_id": "{}", "arrival_s": {}, "ttft_s": 0.25, "wire_s": 0.25, "decode_node": "d"}}\n'
    with exporter(
        tmp_path,
        f"""interval_s = 0.2
        [[engines]]
        name = "demo"
        node = "d"
        pid = {os.getpid()}
        records = "requests.jsonl"
        [recorder]
        path = "bundle"
        """,
    ) as (process, url):
        assert json.loads((tmp_path / "bundle/meta.json").read_text())["nodes"] == {"d": {"role": "both"}}
        records.write_text(row.format("a", 1.5) + row.format("b", 2.5))
        counted = 'kvdiag_ttft_seconds_count{decode_node="d",direction="",prefill_node=""}'
        deadline = time.monotonic() + FEW_S
        while counted not in (text := get(f"{url}/metrics")[1]):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert value(text, counted) == 2
        assert value(text, 'kvdiag_engine_up{engine="demo",node="d",role="both"}') == 1
        kind, body = get(f"{url}/metrics", Accept="application/openmetrics-text; version=1.0.0")
        assert kind.startswith("application/openmetrics-text")
        assert body.endswith("# EOF\n")
        health = json.loads(get(f"{url}/healthz")[1])
        assert health["ready"] is True
        assert all(one["success"] and one["data_age_s"] >= 0 for one in health["collectors"].values())
        assert "/metrics" in get(url)[1]
        with pytest.raises(urllib.error.HTTPError, match="404"):
            get(f"{url}/other")
        with records.open("a") as file:
            file.write(row.format("last", 3.5))
        process.send_signal(signal.SIGTERM)
        asked_s = time.monotonic()
        assert process.wait(FEW_S) == 0
        assert time.monotonic() - asked_s < 10
    found = read_bundle(tmp_path / "bundle")
    assert sorted(found.requests.ids) == ["a", "b", "last"]
    assert "nic.tx_bytes" in {one.metric for one in found.series}


@pytest.mark.component
def test_interrupting_it_ends_it_in_order_and_slow_scrapers_do_not_keep_it(tmp_path: Path) -> None:
    with exporter(tmp_path, "") as (process, url):
        host, port = url.removeprefix("http://").split(":")
        half_open = [socket.create_connection((host, int(port))) for _ in range(20)]
        half_open[0].sendall(b"GET /metrics HTTP/1.1\r\n")
        assert "kvdiag_collector_success" in get(f"{url}/metrics")[1]
        process.send_signal(signal.SIGINT)
        assert process.wait(FEW_S) == 0
        for client in half_open:
            client.close()


@pytest.mark.component
def test_a_taken_port_is_told_in_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        done = subprocess.run(
            [*COMMAND, "--listen", f"127.0.0.1:{port}"], capture_output=True, text=True, timeout=FEW_S, check=False
        )
    assert done.returncode == 69
    assert re.fullmatch(rf"kvdiag: error: --listen: 127\.0\.0\.1:{port} is taken by another program.*\n", done.stderr)


@pytest.mark.component
def test_a_removed_recording_is_told_everywhere_and_ends_in_3(tmp_path: Path) -> None:
    records = tmp_path / "requests.jsonl"
    records.write_text('{"request_id": "a", "arrival_s": 1.5}\n')
    text = """interval_s = 0.2
    [[engines]]
    name = "demo"
    records = "requests.jsonl"
    [recorder]
    path = "bundle"
    """
    with exporter(tmp_path, text) as (process, url):
        assert json.loads(get(f"{url}/healthz")[1])["recorder"]["lost_lines"] == 0
        shutil.rmtree(tmp_path / "bundle")
        deadline = time.monotonic() + FEW_S
        while (health := json.loads(get(f"{url}/healthz")[1])["recorder"])["lost_lines"] == 0:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert health["recording"] is True
        while value(get(f"{url}/metrics")[1], "kvdiag_recorder_lost_lines_total") == 0:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        second = subprocess.run(
            [*COMMAND, "--config", str(tmp_path / "exporter.toml")],
            capture_output=True, text=True, timeout=FEW_S, check=False,
        )  # fmt: skip
        assert second.returncode == 64
        assert second.stderr.count("\n") == 1
        assert f"another exporter (pid {process.pid}) records into it" in second.stderr
        assert (tmp_path / "address").read_text().strip() == url.removeprefix("http://")
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=FEW_S)
        assert process.returncode == 3
    lines = errors.splitlines()
    assert [sum(part in line for line in lines) for part in ("serving", "was removed", "kvdiag: error: recorder:")] == [
        1, 1, 1,
    ]  # fmt: skip
    assert len(lines) == 3
    assert (tmp_path / "bundle/counters.jsonl").stat().st_size > 0


def test_an_unknown_host_to_listen_on_is_a_usage_error(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def resolves_nothing(server: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    assert main(["exporter", "--listen", f"{'a' * 64}.invalid:0"]) == 64
    monkeypatch.setattr("kvdiag_exporters.connections.BoundedConnections.server_bind", resolves_nothing)
    assert main(["exporter", "--listen", "no-such-host.invalid:0"]) == 64
    assert "--listen: 'no-such-host.invalid' is no address and no name known here" in capsys.readouterr().err


def test_what_the_recorder_refuses_names_the_configuration(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bundle").mkdir()
    (tmp_path / "bundle/meta.json").write_text('{"schema": "kvdiag.bundle/99"}')
    path = tmp_path / "exporter.toml"
    path.write_text('listen = "127.0.0.1:0"\n[recorder]\npath = "bundle"\n')
    assert main(["exporter", "--config", str(path)]) == 64
    assert capsys.readouterr().err.startswith(
        f"kvdiag: error: {path}: recorder.path: {tmp_path}/bundle/meta.json: its schema is 'kvdiag.bundle/99'"
    )


def test_a_wrong_field_is_told_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "exporter.toml"
    path.write_text("interval_s = 'often'\n")
    assert main(["exporter", "--config", str(path)]) == 64
    captured = capsys.readouterr()
    assert captured.err == f"kvdiag: error: {path}: interval_s: Expected `float`, got `str`\n"
    assert main(["exporter", "--listen", "9846"]) == 64
    assert main(["exporter", "--config", str(tmp_path / "none.toml")]) == 64


def test_one_collection_as_a_document_and_as_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["exporter", "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    jsonschema.validate(document, published_schema("kvdiag.exporter-1"))
    names = {sample["name"] for sample in document["samples"]}
    assert {"kvdiag_netdev_receive_bytes_total", "kvdiag_exporter_cpu_seconds_total"} <= names
    assert {"exporter_self", "netdev", "nic", "rdma_resources"} <= {one["name"] for one in document["collectors"]}
    assert main(["exporter", "--once"]) == 0
    assert value(capsys.readouterr().out, "kvdiag_exporter_resident_memory_bytes") > 0


def test_the_configuration_is_printed_as_it_is_understood(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "exporter.toml"
    path.write_text('interval_s = 5\n[[engines]]\nname = "a"\nnixl_telemetry = "nixl"\n')
    assert main(["exporter", "--config", str(path), "--listen", "127.0.0.1:0", "--print-config"]) == 0
    printed = capsys.readouterr().out
    assert 'listen = "127.0.0.1:0"' in printed
    assert f'nixl_telemetry = "{tmp_path}/nixl"' in printed
    again = tmp_path / "again.toml"
    again.write_text(printed)
    assert main(["exporter", "--config", str(again), "--print-config"]) == 0
    assert capsys.readouterr().out == printed
    assert main(["exporter", "--print-config", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["interval_s"] == 1.0
