"""Files of requests as a hostile user gives them: each gets an answer or one clear line."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from kvdiag.errors import InputError, KvdiagError, UndeterminedError
from kvdiag.model.request_file import ClientFile, SpanFile, TelemetryFile
from kvdiag.sources.request_files import is_bundle, read_request_files
from tests.attribution.synthetic import World, simulate
from tests.derive.recorded_files import aiperf, bench, guidellm, rows, spans, write_otlp, write_ring

FIXTURES = Path(__file__).parents[1] / "fixtures"
ROWS = rows(simulate(World(seed=4, requests=12, seconds=12.0, serial=False)))
LINE: dict[str, Any] = json.loads(aiperf(ROWS[0]))


def written(folder: Path, content: str | bytes | dict[str, Any] | list[Any], name: str = "file.json") -> Path:
    path = folder / name
    if not isinstance(content, str | bytes):
        content = json.dumps(content)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def client(path: Path) -> ClientFile:
    (found,) = read_request_files(path)
    assert isinstance(found, ClientFile)
    return found


def test_a_recorded_export_of_aiperf() -> None:
    found = client(FIXTURES / "clients/aiperf-0.13.jsonl")
    assert (found.tool, found.wall_clock, len(found.requests)) == ("AIPerf", True, 3)
    first = found.requests[0]
    assert first.keys == (("id", "390a9773-0065-4ead-a4d2-11c3ef8df2c5"),)
    assert first.start_s == pytest.approx(1795963327.708375)
    assert first.ttft_s == pytest.approx(0.662399054)
    assert (first.prompt_tokens, first.output_tokens) == (805.0, 8.0)


def test_a_recorded_result_of_vllm_bench() -> None:
    found = client(FIXTURES / "clients/vllm-bench-0.33.json")
    assert (found.tool, found.wall_clock, found.numbered, len(found.requests)) == ("vllm bench serve", False, True, 20)
    assert found.requests[0].ttft_s == pytest.approx(0.106767955)
    assert found.requests[0].prompt_tokens == 286
    assert found.requests[0].start_s == pytest.approx(4050.861842945)


def test_recorded_telemetry_of_nixl() -> None:
    for version in ("1.0.1", "1.1.0", "1.2.0", "1.5.0"):
        folder = FIXTURES / "nixl/rings" / version
        found = [one for one in read_request_files(folder) if isinstance(one, TelemetryFile)]
        assert found
        assert sum(len(one.transfers) for one in found) > 0
    stores = read_request_files(FIXTURES / "nixl/stores/one-process")
    assert all(isinstance(one, TelemetryFile) and "transfers" in one.totals for one in stores)


def test_spans_as_lines_and_as_one_document_are_the_same(tmp_path: Path) -> None:
    exports = [spans(one) for one in ROWS]
    lines = read_request_files(write_otlp(tmp_path / "lines", exports))
    whole = {"resourceSpans": [one for export in exports for one in export]}
    for indent in (None, 2):
        (found,) = read_request_files(written(tmp_path, json.dumps(whole, indent=indent)))
        assert isinstance(found, SpanFile)
        assert isinstance(lines[0], SpanFile)
        assert found.pieces == lines[0].pieces
        assert found.spans == 3 * len(ROWS)


def test_a_last_line_that_was_cut_off_is_left_out_and_said(tmp_path: Path) -> None:
    whole = write_otlp(tmp_path / "whole", [spans(one) for one in ROWS]).read_bytes()
    for cut in (1, 2, 3, 40, 400):
        (found,) = read_request_files(written(tmp_path, whole[:-cut]))
        assert isinstance(found, SpanFile)
        assert found.spans == 3 * len(ROWS) - (0 if cut == 1 else 3)
        assert bool(found.notes) == (cut != 1)
    text = "\n".join(aiperf(one) for one in ROWS)
    found_client = client(written(tmp_path, text[:-9]))
    assert (len(found_client.requests), len(found_client.notes)) == (len(ROWS) - 1, 1)


def test_a_request_that_failed_or_warmed_up_has_no_ttft(tmp_path: Path) -> None:
    failed = LINE | {"metrics": {}, "error": {"code": 500, "type": "x", "message": "y"}}
    warm = LINE | {"metadata": LINE["metadata"] | {"benchmark_phase": "warmup"}}
    found = client(written(tmp_path, "\n".join(map(json.dumps, (LINE, failed, warm)))))
    assert [one.ttft_s is None for one in found.requests] == [False, True]
    result = bench(ROWS)
    result["errors"][0], result["ttfts"][1] = "timed out", 0.0
    assert [one.ttft_s is None for one in client(written(tmp_path, result)).requests][:3] == [True, True, False]


def test_several_runs_in_one_result_are_several_clients(tmp_path: Path) -> None:
    found = read_request_files(written(tmp_path, json.dumps(bench(ROWS)) + "\n" + json.dumps(bench(ROWS[:5])) + "\n"))
    assert [len(one.requests) for one in found if isinstance(one, ClientFile)] == [len(ROWS), 5]


def test_not_a_number_is_read_where_python_writes_it(tmp_path: Path) -> None:
    result = bench(ROWS) | {"mean_tpot_ms": float("nan"), "rtfx": float("inf")}
    assert len(client(written(tmp_path, result)).requests) == len(ROWS)


def aiperf_with(**values: Any) -> dict[str, Any]:
    metadata = {name: value for name, value in values.items() if name in LINE["metadata"]}
    metrics = {name: value for name, value in values.items() if name not in LINE["metadata"]}
    return LINE | {"metadata": LINE["metadata"] | metadata, "metrics": LINE["metrics"] | metrics}


def guidellm_with(**values: Any) -> dict[str, Any]:
    found = guidellm(ROWS)
    found["benchmarks"][0]["requests"]["successful"][1] |= values
    return found


def otlp_with(**values: Any) -> dict[str, Any]:
    export = spans(ROWS[0])
    export[0]["scopeSpans"][0]["spans"][0] |= values
    return {"resourceSpans": export}


WRONG: list[tuple[str, Any, str]] = [
    ("a start in seconds", aiperf_with(request_start_ns=1795963327.7), "line 1: metadata.request_start_ns.*nanosec"),
    ("a start in milliseconds", aiperf_with(request_start_ns=1795963327708), "no time of our days in nanoseconds"),
    ("a unit nobody knows", aiperf_with(time_to_first_token={"value": 5, "unit": "jiffies"}), "'jiffies'"),
    ("a negative wait", aiperf_with(time_to_first_token={"value": -5, "unit": "ms"}), "time_to_first_token is -5"),
    ("a list for a wait", aiperf_with(time_to_first_token={"value": [5], "unit": "ms"}), "time_to_first_token is"),
    ("no start", {"metadata": {"request_start_ns": None}}, "line 1: .*request_start_ns"),
    ("not a number", '{"metadata": {"request_start_ns": NaN}}', "line 1: "),
    ("a start in ms of GuideLLM", guidellm_with(request_start_time=1795963327708.0), r"successful\[1\].*seconds"),
    ("a negative wait of GuideLLM", guidellm_with(time_to_first_token_ms=-1.0), r"successful\[1\].time_to_first"),
    ("a text for a wait", guidellm_with(time_to_first_token_ms="fast"), "no report of GuideLLM.*time_to_first"),
    ("a summary only", {"mean_ttft_ms": 4.0, "completed": 5}, "--save-detailed"),
    ("a bench without times", {k: v for k, v in bench(ROWS).items() if k != "start_times"}, "no start_times"),
    ("arrays of two lengths", bench(ROWS) | {"start_times": [1.0, 2.0]}, "start_times has 2 items and ttfts 8"),
    ("a negative TTFT", bench(ROWS) | {"ttfts": [-1.0] * len(ROWS)}, r"ttfts\[0\] is -1"),
    ("a TTFT that is no number", bench(ROWS) | {"ttfts": [float("nan")] * len(ROWS)}, r"ttfts\[0\] is nan"),
    ("spans in milliseconds", otlp_with(startTimeUnixNano="1795961457254", endTimeUnixNano="1795961457999"),
     "startTimeUnixNano of span 'llm_request' is 1795961457254.*nanoseconds"),
    ("a trace id in base 64", otlp_with(traceId="Qkqej48+OUBDjumoobhJNg=="), "identifiers are hexadecimal"),
    ("spans that are no list", {"resourceSpans": {"a": 1}}, "resourceSpans"),
    ("logs", {"resourceLogs": []}, "OTLP logs"),
    ("metrics", {"resourceMetrics": []}, "OTLP metrics"),
    ("Zipkin", [{"traceId": "ab", "timestamp": 1}], "Zipkin"),
    ("Jaeger", {"data": [{"traceID": "ab"}]}, "Jaeger"),
    ("a row of a bundle", {"request_id": "a", "arrival_s": 1.0}, "give its folder"),
    ("records without requests", {"schema": "kvdiag.records/1", "version": "1"}, "missing required field"),
    ("a document of kvdiag", {"data": {}, "schema": "kvdiag.diagnose/1"}, "not of requests: kvdiag report shows it"),
    ("scrapes by AIPerf", {"endpoint_url": "http://a/metrics", "timestamp_ns": 1}, "profile_export.jsonl"),
    ("metrics as text", "# HELP agent_tx_bytes_total x\n# TYPE agent_tx_bytes_total counter\n", "--prometheus URL"),
    ("something else", {"hello": 1}, r"none of the known kinds \(its fields: hello\)"),
    ("a number", "5", "no object"),
    ("text", "time,ttft\n1,2\n", "neither JSON nor JSON lines"),
    ("half of a document", '{"benchmarks": [{"requests": {"successful": [', "neither JSON nor JSON lines"),
    ("deep nesting", "[" * 100_000, "neither JSON nor JSON lines"),
    ("a packed file", gzip.compress(b"{}"), "gunzip"),
    ("a Parquet file", b"PAR1\x15\x04", "a Parquet file"),
    ("bytes", b"\x00\x01\x02" * 50, "binary, and not NIXL telemetry"),
]  # fmt: skip


@pytest.mark.parametrize(("content", "message"), [one[1:] for one in WRONG], ids=[one[0] for one in WRONG])
def test_a_wrong_file_gets_one_line_that_names_it(tmp_path: Path, content: Any, message: str) -> None:
    path = written(tmp_path, content)
    with pytest.raises(InputError, match=message) as raised:
        read_request_files(path)
    assert str(raised.value).startswith(str(path))
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 500 + len(str(path))


def test_a_folder_of_bundles_is_told_from_one(tmp_path: Path) -> None:
    for period in ("20261129T100000Z", "20261129T110000Z"):
        (tmp_path / period).mkdir()
        (tmp_path / period / "requests.jsonl").touch()
    with pytest.raises(InputError, match=r"holds 2 trace bundles .* for example \S+/20261129T110000Z$"):
        read_request_files(tmp_path)


@pytest.mark.parametrize("content", ["", " \n\n", {"benchmarks": []}, {"benchmarks": [{"requests": None}]},
                                     bench([ROWS[0]]) | {k: [] for k in ("ttfts", "input_lens", "output_lens",
                                                                        "start_times", "errors")}])  # fmt: skip
def test_an_empty_file_is_nothing_to_examine(tmp_path: Path, content: Any) -> None:
    with pytest.raises(UndeterminedError, match="nothing to examine"):
        read_request_files(written(tmp_path, content))


def test_a_bad_line_in_the_middle_is_named(tmp_path: Path) -> None:
    text = f"{aiperf(ROWS[0])}\n{{broken\n{aiperf(ROWS[1])}\n"
    with pytest.raises(InputError, match="line 2: "):
        read_request_files(written(tmp_path, text))


def test_a_cut_ring_is_refused_and_one_of_many_files_passed_over(tmp_path: Path) -> None:
    ring = write_ring(tmp_path / "decode-0", ROWS)
    content = ring.read_bytes()
    for end in (10, 40, 200, len(content) - 16):
        with pytest.raises(InputError, match="binary, and not NIXL telemetry"):
            read_request_files(written(tmp_path, content[:end], "cut"))
    (tmp_path / "notes.txt").write_text("hello")
    assert [Path(one.path).name for one in read_request_files(tmp_path)] == ["decode-0"]


def test_an_archive_is_to_be_unpacked(tmp_path: Path) -> None:
    for name in ("bundle.tar", "bundle.tar.zst", "bundle.tgz"):
        with pytest.raises(InputError, match=f"tar -xf {name}"):
            read_request_files(written(tmp_path, b"\x28\xb5\x2f\xfd\x00", name))


def test_folders(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "missing", Path("/dev/null")):
        with pytest.raises(KvdiagError, match=str(path)):
            read_request_files(path)
    assert not is_bundle(tmp_path)
    (tmp_path / "requests.jsonl").touch()
    assert is_bundle(tmp_path)
