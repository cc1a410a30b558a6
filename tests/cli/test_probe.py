import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from jsonschema import validate

from kvdiag.cli import main
from kvdiag.cli.probe import _finish
from kvdiag.derive.intervals import metric
from kvdiag.errors import UnavailableError
from kvdiag.model.missing import Missing
from kvdiag.model.probe import ProbeEnds, SizeResult
from kvdiag.report.json import published_schema
from kvdiag_probes import compare, session
from kvdiag_probes.measure import Amount, Runner
from kvdiag_probes.session import ProbeOptions, ProbeResult, run_probe

pytestmark = pytest.mark.usefixtures("token")


def probe(*arguments: str) -> int:
    return main(["probe", *arguments])


@pytest.mark.parametrize("kind", ["bandwidth", "latency"])
@pytest.mark.parametrize("operation", ["write", "read"])
def test_json_is_one_document_of_the_published_schema(
    peer: str, kind: str, operation: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--op", operation, "--transport", "tcp", "--size", "1000,64KiB", "--iterations", "30", "-f", "json"]
    assert probe(kind, peer, *arguments) == 0
    out, err = capsys.readouterr()
    document = json.loads(out)
    validate(document, published_schema("kvdiag.probe-1"))
    assert err == ""
    assert [row["verified_bytes"] for row in document["results"]] == [30_000, 30 * 65536]
    # Over TCP every message is timed.
    assert [(row["latency_stride"], row["latency_s"]["count"]) for row in document["results"]] == [(1, 30), (1, 30)]
    assert document["proof"]["status"] == "proved"
    assert document["settings"]["queue_depth"] == (16 if kind == "bandwidth" else 1)
    assert document["ends"]["local_device"] is None
    stages = {one["stage"]: one["seconds"] for one in document["durations"]["stages"]}
    assert sum(stages.values()) == pytest.approx(document["durations"]["total_s"])
    assert stages["transfer"] >= document["durations"]["steady_transfer_s"] > 0


def test_text_has_perftest_s_columns_within_eighty(peer: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert probe("bandwidth", peer, "--transport", "tcp", "--size", "64KiB", "--duration", "0.05") == 0
    lines = capsys.readouterr().out.splitlines()
    (header,) = [line for line in lines if "BW average[MiB/s]" in line]
    row = lines[lines.index(header) + 1].split()
    assert header.split()[:2] == ["#bytes", "#iterations"] and row[0] == "65536" and float(row[3]) > 0
    assert all(len(line) <= 80 for line in lines if "#" in line)
    assert "carried by TCP: proved" in lines


def test_thresholds_decide_the_exit_code(peer: str, capsys: pytest.CaptureFixture[str]) -> None:
    common = ["bandwidth", peer, "--transport", "tcp", "--size", "4KiB", "--iterations", "20"]
    assert probe(*common, "--min-bandwidth", "0.001Mbps", "--max-p99-us", "60000000") == 0
    assert probe(*common, "--min-bandwidth", "1000Tb/s") == 2
    out = capsys.readouterr().out
    assert out.count("MISSED: --min-bandwidth: bandwidth.4096.bandwidth ") == 1 and "of 5 samples" in out
    assert probe(*common, "--max-p99-us", "0.001") == 2
    assert "MISSED: --max-p99-us 0.001: 4096 bytes reached" in capsys.readouterr().out


@pytest.mark.parametrize("operation", ["write", "read"])
def test_a_wrong_payload_is_critical(peer: str, operation: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert probe("bandwidth", peer, "--transport", "tcp", "--op", operation, "--inject", "corrupt") == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1
    assert "first wrong byte at offset 32768 " in err


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--size", "64KB"], 64, "--size: '64KB' may mean"),
        (["--iterations", "5", "--duration", "1"], 64, "--iterations and --duration exclude each other"),
        (["--queue-depth", "0"], 64, "queue-depth"),
        (["--device", "mlx5_0"], 64, "--device chooses an RDMA port: leave it out with --transport tcp"),
        (["--size", "1GiB"], 64, "--size/--queue-depth: need a buffer of 17179869184 bytes"),
        (["--token-file", "/nonexistent"], 64, "--token-file /nonexistent"),
    ],
)
def test_bad_flags_are_one_line(
    peer: str, arguments: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert probe("bandwidth", peer, "--transport", "tcp", *arguments) == code
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and said in err


def test_a_wrong_token_is_unavailable(
    peer: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KVDIAG_TOKEN", "a-guess")
    assert probe("latency", peer, "--transport", "tcp") == 69
    assert "the token is wrong or missing" in capsys.readouterr().err


def test_an_agent_refuses_to_listen_to_everyone_without_a_credential(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("KVDIAG_TOKEN")
    assert main(["agent", "--listen", "0.0.0.0:0"]) == 64
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and "there is no credential" in err


def test_rounds_give_intervals_that_limits_and_baselines_are_judged_by(
    peer: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    history = tmp_path / "history"
    common = ["latency", peer, "--transport", "tcp", "--size", "4KiB", "--iterations", "8"]
    assert probe(*common, "--rounds", "5", "--min-bandwidth", "1kb/s", "--out", str(history), "-f", "json") == 0
    document = json.loads(capsys.readouterr().out)
    validate(document, published_schema("kvdiag.probe-1"))
    assert [one["name"] for one in document["metrics"]] == ["latency.4096.bandwidth", "latency.4096.latency_p50"]
    assert all(one["low"] <= one["value"] <= one["high"] for one in document["metrics"])
    assert [one["status"] for one in document["judgements"]] == ["met"]
    assert json.loads(history.read_text()) == document
    assert probe(*common, "--rounds", "5", "--min-bandwidth", "90Tb/s") == 2
    assert probe(*common, "--rounds", "4", "--min-bandwidth", "1kb/s") == 3
    assert probe(*common, "--rounds", "5", "--baseline", str(history)) == 3
    out = capsys.readouterr().out
    assert "1 comparable run in the baseline" in out
    (row,) = out[out.index("medians of all 5") :].splitlines()[2:3]
    assert re.fullmatch(r" *4096 +[\d.]+ \([\d.]+ … [\d.]+\) +[\d.]+ \([\d.]+ … [\d.]+\)", row), row


def test_every_round_must_keep_the_latency_limit(
    peer: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rounds = iter((5e-6, 9e-6, 4e-6))

    def slow(options: ProbeOptions) -> ProbeResult:
        result = run_probe(options)
        (row,) = result.results
        return replace(result, results=(replace(row, latency_s=replace(row.latency_s, p99=next(rounds))),))

    monkeypatch.setattr(session, "run_probe", slow)
    common = ["latency", peer, "--transport", "tcp", "--size", "64", "--iterations", "4", "--rounds", "3"]
    assert probe(*common, "--max-p99-us", "8.9") == 2
    assert "MISSED: --max-p99-us 8.9: 64 bytes reached 9.000 µs in the worst round" in capsys.readouterr().out


def test_what_was_measured_before_a_failure_is_kept_and_marked(
    peer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = Runner.measure

    def fail_at_4096(runner: Runner, size: int, amount: Amount) -> SizeResult:
        if size == 4096:
            raise UnavailableError("b:1: the link is gone")
        return whole(runner, size, amount)

    monkeypatch.setattr(Runner, "measure", fail_at_4096)
    history, samples = tmp_path / "history", tmp_path / "samples.csv"
    common = ["bandwidth", peer, "--transport", "tcp", "--size", "64,4096,8192", "--iterations", "10"]
    assert probe(*common, "-f", "json", "--out", str(history), "--samples", str(samples)) == 69
    out, err = capsys.readouterr()
    assert err == "kvdiag: error: b:1: the link is gone\n"
    document = json.loads(out)
    validate(document, published_schema("kvdiag.probe-1"))
    assert [row["size_bytes"] for row in document["results"]] == [64]
    assert document["failure"] == "b:1: the link is gone"
    assert document["proof"]["status"] == "not_observable" and document["metrics"] == []
    assert json.loads(history.read_text()) == document
    assert {line.partition(",")[0] for line in samples.read_text().splitlines()} == {"size_bytes", "64"}
    assert probe(*common) == 69
    assert "INCOMPLETE: the run failed; these are the sizes before that" in capsys.readouterr().out


def test_the_whole_rounds_before_a_failure_are_kept_and_counted(
    peer: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, done = Runner.measure, iter(range(100))

    def fail_in_round_3(runner: Runner, size: int, amount: Amount) -> SizeResult:
        if next(done) == 5:
            raise UnavailableError("b:1: the link is gone")
        return whole(runner, size, amount)

    monkeypatch.setattr(Runner, "measure", fail_in_round_3)
    common = ["bandwidth", peer, "--transport", "tcp", "--size", "64,4096", "--iterations", "10", "--rounds", "7"]
    assert probe(*common, "-f", "json") == 69
    document = json.loads(capsys.readouterr().out)
    validate(document, published_schema("kvdiag.probe-1"))
    assert (document["rounds"], document["rounds_asked"], len(document["results"])) == (2, 7, 2)
    assert {one["samples"] for one in document["metrics"]} == {2}
    done = iter(range(100))
    assert probe(*common) == 69
    out = capsys.readouterr().out
    assert "INCOMPLETE: round 3 of 7 failed; these are the 2 before it" in out
    assert ", 2 rounds\n" in out and "the above of the last round; medians of all 2" in out


@pytest.mark.parametrize(
    ("rails", "directions", "limit"),
    [((), 1, 0.9 * 25e9), ((), 2, 1.8 * 25e9), (("b/1 gid-index 3 (::1, RoCE v2) -> d/1",), 1, 0.9 * 50e9)],
)
def test_a_share_of_the_link_is_one_of_all_rails_and_directions(
    monkeypatch: pytest.MonkeyPatch, rails: tuple[str, ...], directions: int, limit: float
) -> None:
    ports = (SimpleNamespace(name="a/1", rate_gbps=200.0), SimpleNamespace(name="b/1", rate_gbps=200.0))
    monkeypatch.setattr(compare, "read_devices", lambda: SimpleNamespace(ports=ports))
    ends = ProbeEnds(peer="p:1", peer_host="p", local_device="a/1 gid-index 3 (::1, RoCE v2)", rails=rails)
    rates = [metric("bandwidth.1.bandwidth", "bytes_per_second", "higher", [1e9] * 5)]
    (found,) = _finish.judge_rates({"min_bandwidth": "0.9xlink"}, ends, rates, directions)
    assert found.status == "missed" and found.limit == pytest.approx(limit)


def test_a_rail_of_unknown_rate_leaves_the_share_undecided(monkeypatch: pytest.MonkeyPatch) -> None:
    ports = (SimpleNamespace(name="a/1", rate_gbps=200.0), SimpleNamespace(name="b/1", rate_gbps=Missing("no rate")))
    monkeypatch.setattr(compare, "read_devices", lambda: SimpleNamespace(ports=ports))
    ends = ProbeEnds(peer="p:1", peer_host="p", local_device="a/1 gid", rails=("b/1 gid -> d/1",))
    assert compare.link_bytes_per_second(ends) is None
