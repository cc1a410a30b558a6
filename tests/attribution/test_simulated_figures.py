"""The benchmark on simulated clusters always tells what it looked at, whatever kind of worlds that was."""

from dataclasses import replace

import pytest

from benchmarks import attribution_simulated as benchmark
from benchmarks.attribution_bundles import Outcome

SEED = 1000


@pytest.fixture(scope="module")
def examined() -> tuple[benchmark.Case, Outcome]:
    return benchmark.examine("none", SEED, histograms=True)


@pytest.mark.parametrize("identifiable", [True, False])
@pytest.mark.parametrize("kind", benchmark.KINDS)
def test_one_world_of_any_kind_has_its_figures(
    examined: tuple[benchmark.Case, Outcome],
    capsys: pytest.CaptureFixture[str],
    kind: str,
    identifiable: bool,
) -> None:
    case, outcome = examined
    injected = replace(outcome, truth=None if kind == "none" else "fabric.loss", identifiable=identifiable)
    benchmark.report({each: [(case, injected)] if each == kind else [] for each in benchmark.KINDS})
    said = capsys.readouterr().out
    heading = said.strip().splitlines()[0]
    assert said.count("==") == 1
    assert heading.startswith("== ")
    assert ": 1" in heading
    if kind == "none":
        assert "nothing injected: 1; fabric, registration or connection claimed: 0" in said
    if kind == "cause":
        assert f"identifiable faults: {int(identifiable)}\n" in said


def test_no_worlds_are_a_usage_error(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["attribution_simulated", "--worlds", "0"])
    with pytest.raises(SystemExit):
        benchmark.main()
    assert "--worlds 0: give at least 1" in capsys.readouterr().err
