from pathlib import Path

import pytest

from kvdiag.errors import InputError, UsageError
from kvdiag_exporters.config import DEFAULT_LISTEN, Config, engines, load, split_listen


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "exporter.toml"
    path.write_text(text)
    return path


def test_everything_has_a_default(tmp_path: Path) -> None:
    assert load(written(tmp_path, "")) == Config()
    assert split_listen(DEFAULT_LISTEN)[0] == "127.0.0.1"


def test_paths_are_relative_to_the_file_and_nodes_default_to_the_host(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    config = load(
        written(
            tmp_path,
            """
            listen = "[::1]:0"
            address_file = "run/address"
            root = "run"
            interval_s = 5
            [[engines]]
            name = "a"
            node = "prefill-0"
            role = "prefill"
            pid = 12
            nixl_telemetry = "nixl"
            records = "/abs/requests.jsonl"
            [[engines]]
            name = "b"
            [recorder]
            path = "bundle"
            incident_start_s = 12
            """,
        )
    )
    assert config.address_file == str(tmp_path / "run/address")
    assert config.root == str(tmp_path / "run")
    assert config.recorder is not None
    assert (config.recorder.path, config.recorder.incident_start_s) == (str(tmp_path / "bundle"), 12.0)
    first, second = engines(config, "host-a")
    assert (first.nixl_telemetry, first.records) == (tmp_path / "nixl", Path("/abs/requests.jsonl"))
    assert (first.node, first.role, first.pid) == ("prefill-0", "prefill", 12)
    assert (second.node, second.role, second.pid, second.records) == ("host-a", "both", None, None)


@pytest.mark.parametrize(("text", "message"), [
    ("listen = 9846", "listen: Expected `str`, got `int`"),
    ('listen = "9846"', "listen is '9846'; give ADDR:PORT"),
    ('listen = "host:70000"', "give ADDR:PORT"),
    ("interval_s = 0", "interval_s: Expected `float` >= 0.05"),
    ("intervall_s = 1", "toml: unknown field `intervall_s`; did you mean `interval_s`?"),
    ("zzz = 1", "toml: unknown field `zzz`; the fields here are listen, address_file, "),
    ('[[engines]]\nname = "a"\nrecord = "r"', "engines[0]: unknown field `record`; did you mean `records`?"),
    ('[recorder]\npaht = "b"', "recorder: unknown field `paht`; did you mean `path`?"),
    ('[engines]\nname = "a"', "engines: write each as a table of its own, headed [[engines]] and not [engines]"),
    ('root = "/nonexist"', "root: /nonexist is no folder"),
    ('address_file = "none/address"', "none is no folder; create it first"),
    ('address_file = "."', "is a folder; name a file in it"),
    ('[recorder]\npath = "exporter.toml"', "exporter.toml is a file, not a folder"),
    ("[[engines]]", "engines[0]: Object missing required field `name`"),
    ('[[engines]]\nname = "a"\npid = "me"', "engines[0].pid: Expected `int | null`, got `str`"),
    ('[[engines]]\nname = "a"\nrole = "judge"', "role: Invalid enum value 'judge'; give one of both, decode, prefill"),
    ('[[engines]]\nname = "a"\n[[engines]]\nname = "a"', "the name 'a' is given 2 times"),
    ("[recorder]", "recorder: Object missing required field `path`"),
    ("listen = ", "not TOML"),
    ("node = " + "[" * 5000, "not TOML"),
    ('probe_results = "a.jsonl"', "probe_results: Expected `array`, got `str`; put it into brackets: [...]"),
    ('[[engines]]\nname = "a"\nlogs = "a.log"', "engines[0].logs: Expected `array`, got `str`; put it into brackets"),
    ('probe_results = ["a\\u0000b"]', "probe_results[0]: give one line of text"),
    ('node = "a\\n"', "node: give one line of text"),
    ('web_config = "a\\u0000b"', "web_config: give one line of text"),
    (f'[recorder]\npath = "{"a" * 4000}"', ": File name too long"),
    (f'[recorder]\npath = "{"a" * 5000}"', "recorder.path: give one line of text"),
    ('[recorder]\npath = "b"\nincident_start_s = nan', "recorder.incident_start_s: Expected `float` >= 0.0"),
    ('address_file = "exporter.toml"', "exporter.toml holds something else than an address; name a file of its own"),
    ('[[engines]]\nname = "a"\nmetrics = ["http://a:99999/m"]', "metrics[0]: give an address as http://HOST:PORT/PATH"),
    ('[[engines]]\nname = "a"\nmetrics = ["http://[::1/m"]', "metrics[0]: give an address as http://HOST:PORT/PATH"),
    ('[[engines]]\nname = "a"\nmetrics = ["http://u:p@a/m"]', "metrics[0]: give an address as http://HOST:PORT/PATH"),
    ('[records]\nexport = "http://a:1?x=1"', "records.export: give the address of an OTLP/HTTP receiver"),
    ('[records.forward]\nendpoint = "http://a:4318/v1/traces"', "endpoint: give the address of an OTLP/HTTP receiver"),
    ('[records]\notlp_http = ":4318"', "records.otlp_http is ':4318'; give ADDR:PORT, for example 127.0.0.1:4318"),
    ('node = ""', "node: Expected `str` of length >= 1"),
])  # fmt: skip
def test_what_is_wrong_is_named_by_file_and_field(text: str, message: str, tmp_path: Path) -> None:
    path = written(tmp_path, text)
    with pytest.raises(InputError) as caught:
        load(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert message in str(caught.value)
    assert caught.value.exit_code == 64


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.toml: No such file"):
        load(tmp_path / "none.toml")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\0")
    with pytest.raises(InputError, match="not TOML"):
        load(tmp_path / "binary.toml")


@pytest.mark.parametrize("listen", ["", ":80", "a:b", "::1:80", "[::1]", "a:-1", "a:80 "])
def test_addresses_are_checked(listen: str) -> None:
    with pytest.raises(UsageError):
        split_listen(listen)


@pytest.mark.parametrize("url", [
    "http://a", "https://a:1/", "http://[::1]:65535/metrics?x=%20&y=1", "http://127.0.0.1:8000/a/v1/traces/b",
])  # fmt: skip
def test_addresses_of_servers_may_be(url: str, tmp_path: Path) -> None:
    assert load(written(tmp_path, f'[[engines]]\nname = "a"\nmetrics = ["{url}"]')).engines[0].metrics == (url,)


def test_an_address_file_of_an_earlier_run_may_be_replaced(tmp_path: Path) -> None:
    for earlier in ("", "127.0.0.1:9846\n", "[::1]:80"):
        (tmp_path / "address").write_text(earlier)
        assert load(written(tmp_path, 'address_file = "address"')).address_file == str(tmp_path / "address")
