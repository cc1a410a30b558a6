"""`kvdiag demo` without its processes, on simulated recordings; tests/probes/demo runs the whole."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import jsonschema
import numpy as np
import pytest

import kvdiag.sources.bundle
from kvdiag.cli import main
from kvdiag.errors import UndeterminedError
from kvdiag.model.bundle import CounterSeries
from kvdiag.model.exit_code import ExitCode
from kvdiag.model.missing import Missing
from kvdiag.report.json import published_schema
from kvdiag_probes.demo import network, run
from tests.attribution.synthetic import World, simulate


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a simulated recording without any change in the place of the run."""

    @contextmanager
    def running(plan: run.Plan, say: run.Say, progress: run.Progress, *, keep_serving: bool) -> Iterator[run.Outcome]:
        for quarter in range(5):
            progress(quarter / 4, quarter)
        say("recorded")
        yield run.Outcome(
            plan=plan,
            requests=480,
            fault_offset_s=None if plan.fault == "none" else plan.duration_s / 2,
            metrics_address="127.0.0.1:1",
            metrics_sample=("kvdiag_ttft_seconds_count 480",),
        )

    monkeypatch.setattr(network, "availability", lambda: None)
    monkeypatch.setattr(run, "running", running)
    monkeypatch.setattr(kvdiag.sources.bundle, "read_bundle", lambda path: simulate(World(seed=1)))


def test_silence_on_nothing_is_a_match(recorded: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["demo", "--fault", "none", "--transport", "tcp", "--format", "json", "--output", str(tmp_path)]
    assert main(arguments) == ExitCode.PASSED
    captured = capsys.readouterr()
    document = json.loads(captured.out)
    jsonschema.validate(document, published_schema("kvdiag.demo-1"))
    assert document["verdict"] == document["diagnosis"]["verdict"]
    assert (document["verdict"]["status"], document["verdict"]["cause"]) == ("no_change", None)
    assert (document["expected_cause"], document["matched"], document["fault_offset_s"]) == (None, True, None)
    assert "50% of the run, 2 requests answered" in captured.err


def test_silence_on_a_fault_is_a_miss(recorded: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["demo", "--fault", "link", "--transport", "tcp", "--output", str(tmp_path), "--seed", "5"]
    assert main(arguments) == ExitCode.CRITICAL
    out = " ".join(capsys.readouterr().out.split())
    for text in ("not what was injected", "no change", "limited to 0.8 Gbit/s", "http://127.0.0.1:1/metrics"):
        assert text in out
    assert f"kvdiag diagnose {tmp_path}/bundle-" in out
    assert "--seed 5" in out


@pytest.mark.parametrize(("stalled", "told"), [(0.92, True), (0.05, False)])
def test_a_miss_on_a_busy_machine_says_so(
    recorded: None,
    stalled: float,
    told: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    times = np.array([0.0, 60.0])
    series = CounterSeries(
        node="a", device=None, metric="host.cpu_stalled_us", time_s=times, value=times * stalled * 1e6 + 7e9
    )
    bundle = replace(simulate(World(seed=1)), series=(series,))
    monkeypatch.setattr(kvdiag.sources.bundle, "read_bundle", lambda path: bundle)
    assert main(["demo", "--fault", "link", "--transport", "tcp", "--output", str(tmp_path)]) == ExitCode.CRITICAL
    out = " ".join(capsys.readouterr().out.split())
    assert ("waited for a processor 92% of the time" in out and "run it again" in out) is told


def test_what_is_impossible_here_is_said_in_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(network, "availability", lambda: Missing("no network namespace: Operation not permitted"))
    assert main(["demo", "--fault", "link", "--output", str(tmp_path)]) == UndeterminedError.exit_code
    error = capsys.readouterr().err
    assert error.startswith("kvdiag: error: --fault link is not possible here: no network namespace")
    assert error.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("arguments", [["--fault", "fire"], ["--duration", "1"], ["--rate", "0"], ["--seed", "-1"]])
def test_wrong_values_are_usage_errors(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", *arguments]) == ExitCode.USAGE
    assert arguments[0] in capsys.readouterr().err
