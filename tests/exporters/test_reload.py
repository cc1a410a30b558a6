"""SIGHUP takes up a new configuration where it can be read, and changes nothing where it cannot."""

import http.client
import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kvdiag_exporters.app import run
from kvdiag_exporters.config import Config, load
from kvdiag_exporters.config_text import as_json, as_toml, schema

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
