import json
from pathlib import Path

import pytest
from jsonschema import validate

from kvdiag.cli import main
from kvdiag.cli.probe._finish import parse_rate
from kvdiag.errors import UndeterminedError, UsageError
from kvdiag.report.json import published_schema

TCP = ("--methods", "tcp-write,tcp-read", "--size", "64KiB", "--iterations", "16")


pytestmark = pytest.mark.usefixtures("token")


def test_tcp_alone_gives_ratios_with_intervals_and_a_proof_for_each(
    peer: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["probe", "compare", peer, *TCP, "--rounds", "5", "-f", "json"]) == 0
    out, err = capsys.readouterr()
    document = json.loads(out)
    validate(document, published_schema("kvdiag.probe-compare-1"))
    assert err == ""
    write, read = document["results"]
    assert (write["method"], read["method"]) == ("tcp-write", "tcp-read")
    assert write["ratio"]["value"] == write["ratio"]["low"] == 1.0
    assert read["ratio"]["low"] <= read["ratio"]["value"] <= read["ratio"]["high"]
    assert read["bandwidth"]["samples"] == 5
    assert [one["proof"]["status"] for one in document["proofs"]] == ["proved", "proved"]


def test_without_rdma_it_cannot_compare_and_says_how_to_compare_tcp(
    peer: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from kvdiag.model.rdma import RdmaDevices
    from kvdiag_probes import rails

    monkeypatch.setattr(rails, "read_devices", lambda: RdmaDevices(devices=()))
    assert main(["probe", "compare", peer, "--rounds", "1"]) == 3
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "no RDMA device on this host" in err and "--methods tcp-write,tcp-read compares TCP alone" in err


def test_the_baseline_needs_five_runs_alike_and_then_finds_a_fall(
    peer: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    history = tmp_path / "history"
    common = ["probe", "compare", peer, *TCP, "--rounds", "5"]
    assert main([*common, "--out", str(history), "-f", "json"]) == 0
    assert main([*common, "--baseline", str(history)]) == 3
    assert "1 comparable run in the baseline, 5 needed" in capsys.readouterr().out
    run = json.loads(history.read_text())
    for row in run["results"]:
        row["bandwidth"]["value"] *= 1e6
        row["latency_p50"]["value"] *= 1e6
    history.write_text("".join(json.dumps(run) + "\n" for _ in range(5)))
    assert main([*common, "--baseline", str(history), "-f", "json"]) == 2
    verdicts = {one["metric"]: one["status"] for one in json.loads(capsys.readouterr().out)["judgements"]}
    assert verdicts["tcp-write.65536.bandwidth"] == "missed" and verdicts["tcp-write.65536.latency_p50"] == "met"


def test_a_minimum_needs_an_interval_and_a_known_link(peer: str, capsys: pytest.CaptureFixture[str]) -> None:
    common = ["probe", "compare", peer, *TCP]
    assert main([*common, "--rounds", "5", "--min-bandwidth", "1kb/s"]) == 0
    assert main([*common, "--rounds", "5", "--min-bandwidth", "100Tb/s"]) == 2
    assert main([*common, "--rounds", "2", "--min-bandwidth", "1kb/s"]) == 3
    assert main([*common, "--rounds", "5", "--min-bandwidth", "0.9xlink"]) == 3
    # What was measured is printed all the same.
    out = capsys.readouterr().out
    assert "--min-bandwidth 0.9xlink: the link's rate is not known here" in out and "MiB/s" in out


def test_rates_are_read_as_networks_write_them() -> None:
    assert parse_rate("90Gb/s", "--x") == 90e9 / 8
    assert parse_rate("11.2GB/s", "--x") == pytest.approx(11.2e9)
    assert parse_rate("100MiB/s", "--x") == 100 << 20
    assert parse_rate("0.9xlink", "--x", 50e9) == 45e9
    assert {parse_rate(one, "--x") for one in ("90Gbps", "90gbps", "90 gb/s", "90Gbit/s", "90000Mbps")} == {90e9 / 8}
    assert parse_rate("11GBps", "--x") == parse_rate("11GB/s", "--x") == 11e9
    for wrong in ("fast", "0Gb/s", "10GB", "-1Gb/s"):
        with pytest.raises(UsageError, match="--x"):
            parse_rate(wrong, "--x")
    with pytest.raises(UndeterminedError):
        parse_rate("1xlink", "--x")
