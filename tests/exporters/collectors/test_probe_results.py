"""What becomes of the files that probes append to."""

import json
from pathlib import Path
from typing import Any

import pytest

from kvdiag.cli import main
from kvdiag_exporters.catalog import Sample
from kvdiag_exporters.collectors import probe_results
from kvdiag_exporters.collectors.base import Setup, create_all
from kvdiag_exporters.collectors.probe_results import ProbeResultsCollector
from kvdiag_exporters.config import load
from tests.probes.agents import serving

RESULT = {"size_bytes": 65536, "bytes_per_second": 1e9, "latency_s": {"p50": 1e-5, "p99": 2e-5}}


def document(time: str = "2026-01-01T10:00:00.000Z", gbps: float = 10.0, **more: Any) -> dict[str, Any]:
    result = RESULT | {"bytes_per_second": gbps * 1e9 / 8}
    return {
        "schema": "kvdiag.probe/1", "version": "0", "host": "a", "time": time,
        "settings": {"kind": "bandwidth", "operation": "write", "transport": "rdma"},
        "ends": {"peer": "b:1", "peer_host": "b", "local_device": "mlx5_0 port 1 GID 3"},
        "results": [result], **more,
    }  # fmt: skip


def write(path: Path, *documents: object) -> None:
    with path.open("a") as file:
        file.write("".join((one if isinstance(one, str) else json.dumps(one)) + "\n" for one in documents))


def collector(*patterns: Path) -> ProbeResultsCollector:
    found = probe_results.create(Setup(node="a", probe_results=tuple(str(one) for one in patterns)))
    assert found is not None
    return found


def values(samples: list[Sample], name: str) -> dict[Any, Any]:
    return {one.labels: one.value for one in samples if one.metric.name == f"kvdiag_probe_{name}"}


def test_the_last_run_of_each_kind_is_shown(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", document(gbps=10), document("2026-01-01T11:00:00.000Z", gbps=20))
    write(tmp_path / "b.jsonl", document("2026-01-01T09:00:00.000Z", gbps=90))
    one = collector(tmp_path / "*.jsonl")
    samples = list(one.collect())
    kind = ("a", "b", "bandwidth", "write", "rdma", "mlx5_0")
    assert values(samples, "bandwidth_bytes_per_second") == {(*kind, "65536"): 2.5e9}
    assert values(samples, "latency_p50_seconds") == {(*kind, "65536"): 1e-5}
    assert values(samples, "latency_p99_seconds") == {(*kind, "65536"): 2e-5}
    assert values(samples, "timestamp_seconds") == {kind: 1767265200.0}
    assert values(samples, "failed") == {kind: 0}
    assert values(samples, "runs_read_total") == {(): 3}
    missed = [{"status": "missed"}, {"status": "met"}]
    write(tmp_path / "a.jsonl", document("2026-01-01T12:00:00.000Z", failure="cut", results=[], judgements=missed))
    samples = list(one.collect())
    assert values(samples, "failed") == {kind: 1}
    assert values(samples, "missed_limits") == {kind: 1}
    assert values(samples, "bandwidth_bytes_per_second") == {}
    assert one.missing == ()


def test_comparisons_and_layouts_have_their_own_names(tmp_path: Path) -> None:
    def median(value: float) -> dict[str, float]:
        return {"value": value}

    head = document()
    compare = head | {
        "schema": "kvdiag.probe-compare/1",
        "results": [
            {"method": "tcp-read", "size_bytes": 1000, "bandwidth": median(1e9), "latency_p50": median(1e-4)},
        ],
    }
    row = {"operation": "read", "mode": "block", "bytes": 4096, "bandwidth": median(2e9), "total": median(0.5)}
    layouts = head | {
        "schema": "kvdiag.probe-kv/1",
        "settings": {"transport": "nixl"},
        "rows": [row | {"pair": [0, 0], "bytes": 1}, row | {"pair": None}],
    }
    here = layouts | {"ends": None}
    other = head | {"schema": "kvdiag.probe-register/1"}
    write(tmp_path / "all.jsonl", compare, layouts, here, other)
    found = values(list(collector(tmp_path / "all.jsonl").collect()), "latency_p50_seconds")
    assert found == {
        ("a", "b", "compare", "read", "tcp", "mlx5_0", "1000"): 1e-4,
        ("a", "b", "kv block", "read", "nixl", "mlx5_0", "4096"): 0.5,
    }


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("garbage", "JSON is malformed"),
        ("{}", "no document of kvdiag probe"),
        ("[1]", "Expected `object`, got `array`"),
        ({**document(), "results": None}, "Expected `array`, got `null` - at `$.results`"),
        ({**document(), "settings": {"kind": "latency", "operation": "read", "transport": 3}}, "$.settings.transport"),
        ({**document(), "host": {"a": 1}}, "$.host"),
        ({**document(), "results": [{**RESULT, "bytes_per_second": "nan"}]}, "$.results[0].bytes_per_second"),
        ({**document(), "results": [{**RESULT, "size_bytes": -4}]}, "Expected `int` >= 0"),
        ({**document(), "time": "0001-01-01T00:00:00"}, "out of range"),
        ({**document(), "time": "yesterday"}, "Invalid isoformat string"),
    ],
)
def test_a_line_that_is_none_is_counted_and_named(tmp_path: Path, line: object, said: str) -> None:
    write(tmp_path / "x.jsonl", document(), line if isinstance(line, str) else json.dumps(line), document())
    one = collector(tmp_path / "x.jsonl")
    samples = list(one.collect())
    assert values(samples, "invalid_lines_total") == {(): 1}
    assert values(samples, "runs_read_total") == {(): 2}
    (told,) = one.missing
    assert f"{tmp_path}/x.jsonl, line 2: " in told
    assert said in told


def test_no_file_yet_is_told_and_one_that_comes_is_read(tmp_path: Path) -> None:
    one = collector(tmp_path / "later.jsonl")
    list(one.collect())
    assert list(one.missing) == [f"{tmp_path}/later.jsonl: no such file yet; kvdiag probe … --out writes it"]
    write(tmp_path / "later.jsonl", document())
    assert len(values(list(one.collect()), "timestamp_seconds")) == 1
    assert one.missing == ()


def test_kinds_of_run_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe_results, "MOST_RUNS", 2)
    for minute in range(4):
        write(tmp_path / "x.jsonl", {**document(f"2026-01-01T10:0{minute}:00.000Z"), "host": f"h{minute}"})
    one = collector(tmp_path / "x.jsonl")
    assert {labels[0] for labels in values(list(one.collect()), "timestamp_seconds")} == {"h2", "h3"}
    assert "2 were left out" in one.missing[0]


def test_the_configuration_names_them(tmp_path: Path) -> None:
    (tmp_path / "exporter.toml").write_text('probe_results = ["probes/*.jsonl", "/var/lib/p.jsonl"]\n')
    config = load(tmp_path / "exporter.toml")
    assert config.probe_results == (f"{tmp_path}/probes/*.jsonl", "/var/lib/p.jsonl")
    assert "probe_results" not in create_all(Setup(node="a"))


def test_what_a_real_probe_appends_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVDIAG_TOKEN", "let-me-in")
    history = tmp_path / "history.jsonl"
    with serving() as server:
        arguments = ["--transport", "tcp", "--size", "4KiB,64KiB", "--iterations", "20", "--out", str(history)]
        assert main(["probe", "latency", str(server.address), *arguments, "--min-bandwidth", "1000Tb/s"]) == 2
    samples = list(collector(history).collect())
    found = values(samples, "latency_p99_seconds")
    assert [labels[2:] for labels in found] == [("latency", "write", "tcp", "", one) for one in ("4096", "65536")]
    assert all(value > 0 for value in found.values())
    assert list(values(samples, "missed_limits").values()) == [2]
