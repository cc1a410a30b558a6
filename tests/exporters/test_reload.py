"""SIGHUP takes up a new configuration where it can be read, and changes nothing where it cannot."""

import http.client
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kvdiag_exporters import app
from kvdiag_exporters.app import run
from kvdiag_exporters.config import Config, load
from kvdiag_exporters.config_text import as_json, as_toml, schema
from kvdiag_exporters.lock import FolderLock

LONGEST_S = 30.0


def get(address: str, path: str = "/metrics") -> str:
    connection = http.client.HTTPConnection(address, timeout=10)
    try:
        connection.request("GET", path)
        return connection.getresponse().read().decode()
    finally:
        connection.close()


def until(met: Callable[[], bool]) -> None:
    """Wait for it, for a minute at most."""
    deadline_s = time.monotonic() + LONGEST_S
    while time.monotonic() < deadline_s:
        try:
            if met():
                return
        except OSError:  # between two configurations nobody listens
            pass
        time.sleep(0.02)
    raise AssertionError("it did not happen")


def test_a_reload_keeps_the_address_and_a_wrong_file_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "root/proc/net").mkdir(parents=True)
    (tmp_path / "root/proc/net/dev").write_text("x\nx\n eth0: 900 9 1 2 0 0 0 0 800 8 3 4 0 0 0 0\n")
    path = tmp_path / "exporter.toml"

    def write(node: str, more: str = "") -> None:
        path.write_text(
            'listen = "127.0.0.1:0"\naddress_file = "address"\nroot = "root"\ninterval_s = 0.05\n'
            f'node = "{node}"\n{more}\n'
        )

    write("first")
    failures: list[BaseException] = []

    def operate() -> None:
        try:
            until(lambda: (tmp_path / "address").exists())
            address = (tmp_path / "address").read_text().strip()
            assert 'node="first"' in get(address)
            assert get(address, "/readyz") == "ready\n"
            before = threading.active_count()
            write("second")
            os.kill(os.getpid(), signal.SIGHUP)
            until(lambda: 'node="second"' in get(address))
            path.write_text("interval_s = 'often'\n")
            os.kill(os.getpid(), signal.SIGHUP)
            until(lambda: "the configuration stays as it is" in caplog.text)
            write("second", 'web_config = "none.yml"')
            os.kill(os.getpid(), signal.SIGHUP)
            until(lambda: "none.yml: No such file" in caplog.text)
            assert 'node="second"' in get(address)
            write("third")
            os.kill(os.getpid(), signal.SIGHUP)
            until(lambda: 'node="third"' in get(address))
            until(lambda: threading.active_count() <= before)  # the collectors of before have ended
        except BaseException as error:
            failures.append(error)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    operator = threading.Thread(target=operate)
    told: list[str] = []
    operator.start()
    with caplog.at_level(logging.ERROR):
        run(load(path), told.append, file=path, reload=lambda: load(path))
    operator.join()
    assert failures == []
    assert len(told) == 3
    assert len({line.split("/metrics")[0] for line in told}) == 1
    assert f"{path}: interval_s: Expected `float`, got `str`" in caplog.text


CONFIG = """
listen = "{listen}"
address_file = "address"
root = "root"
interval_s = 0.05
node = "{node}"
{more}
"""


def write(folder: Path, node: str, listen: str = "127.0.0.1:0", more: str = "") -> None:
    (folder / "exporter.toml").write_text(CONFIG.format(node=node, listen=listen, more=more))


def operated(folder: Path, operate: Callable[[str], None]) -> list[str]:
    """Run the exporter while `operate` is given its address; return the lines that it told."""
    (folder / "root/proc/net").mkdir(parents=True)
    (folder / "root/proc/net/dev").write_text("x\nx\n eth0: 900 9 1 2 0 0 0 0 800 8 3 4 0 0 0 0\n")
    path = folder / "exporter.toml"
    failures: list[BaseException] = []

    def run_it() -> None:
        try:
            until(lambda: (folder / "address").exists())
            operate((folder / "address").read_text().strip())
        except BaseException as error:
            failures.append(error)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    operator = threading.Thread(target=run_it)
    operator.start()
    told: list[str] = []
    run(load(path), told.append, file=path, reload=lambda: load(path))
    operator.join()
    assert failures == []
    return told


def reloaded(address: str) -> float:
    (line,) = [
        one for one in get(address).splitlines() if one.startswith("kvdiag_exporter_config_last_reload_success ")
    ]
    return float(line.split()[1])


def test_a_configuration_that_cannot_be_served_leaves_the_present_one_serving(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path, "first")
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign/requests.jsonl").write_text("not a bundle\n")
    (tmp_path / "taken").mkdir()
    other = FolderLock(tmp_path / "taken")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        wrong = {
            f"listen: cannot listen on 127.0.0.1:{port}: Address already in use": {"listen": f"127.0.0.1:{port}"},
            f"records.otlp_http: cannot listen on 127.0.0.1:{port}": {
                "more": f'[records]\notlp_http = "127.0.0.1:{port}"'
            },
            f"records.otlp_grpc: cannot listen on 127.0.0.1:{port}": {
                "more": f'[records]\notlp_grpc = "127.0.0.1:{port}"'
            },
            "there is no meta.json beside it": {"more": '[recorder]\npath = "foreign"'},
            "another exporter (pid": {"more": '[recorder]\npath = "taken"'},
            "net/dev/x: Not a directory": {"more": '[recorder]\npath = "root/proc/net/dev/x"\nrotate_s = 60'},
        }

        def operate(address: str) -> None:
            assert reloaded(address) == 1
            for message, change in wrong.items():
                caplog.clear()
                write(tmp_path, "second", **change)
                os.kill(os.getpid(), signal.SIGHUP)
                until(lambda: "the configuration stays as it is" in caplog.text)
                assert message in caplog.text
                until(lambda: reloaded(address) == 0)
                assert 'node="first"' in get(address)
            write(tmp_path, "third")
            os.kill(os.getpid(), signal.SIGHUP)
            until(lambda: 'node="third"' in get(address))
            assert reloaded(address) == 1

        with caplog.at_level(logging.ERROR):
            assert len(operated(tmp_path, operate)) == 2
    other.close()


def test_what_is_taken_in_the_last_moment_is_gone_back_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "check", lambda *_: None)
    write(tmp_path, "first")
    with socket.create_server(("127.0.0.1", 0)) as taken:

        def operate(address: str) -> None:
            write(tmp_path, "second", f"127.0.0.1:{taken.getsockname()[1]}")
            os.kill(os.getpid(), signal.SIGHUP)
            until(lambda: "cannot be served, going on with the one before" in caplog.text)
            until(lambda: reloaded(address) == 0)
            assert 'node="first"' in get(address)

        with caplog.at_level(logging.ERROR):
            told = operated(tmp_path, operate)
    assert len({line.split("/metrics")[0] for line in told}) == 1


FULL = """
listen = "[::1]:0"
address_file = "address"
interval_s = 5
root = "."
[[engines]]
name = "a \\"quoted\\" \\\\ name"
metrics = ["http://127.0.0.1:8000/metrics"]
[[engines]]
name = "b"
pid = 12
[recorder]
path = "bundle"
incident_start_s = 12.5
"""


def test_what_is_printed_can_be_read_again(tmp_path: Path) -> None:
    path = tmp_path / "exporter.toml"
    path.write_text(FULL)
    config = load(path)
    path.write_text(as_toml(config))
    assert load(path) == config
    path.write_text(as_toml(Config()))
    assert load(path) == Config()
    assert '"incident_start_s": 12.5' in as_json(config)


def test_the_published_schema_is_that_of_the_configuration(tmp_path: Path) -> None:
    import json
    import tomllib

    import jsonschema

    import kvdiag_exporters

    published = (Path(kvdiag_exporters.__file__).parent / "config.schema.json").read_text()
    assert published == schema(), (
        "run python -m kvdiag_exporters.config_text exporters/kvdiag_exporters/config.schema.json"
    )
    validator = jsonschema.Draft202012Validator(json.loads(published))
    validator.validate(tomllib.loads(FULL))
    with pytest.raises(jsonschema.ValidationError, match="listne"):
        validator.validate({"listne": "x"})
