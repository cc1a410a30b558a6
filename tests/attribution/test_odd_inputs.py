"""Recordings with every ordinary blemish give the answer of the clean one, or a refusal that says why."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kvdiag.attribution import diagnose
from kvdiag.cli import main
from kvdiag.errors import InputError
from kvdiag.model.bundle import Bundle, CounterSeries, Labels, RequestColumns
from kvdiag.model.diagnosis import Diagnosis
from kvdiag.sources.bundle import read_bundle
from tests.attribution.synthetic import START_S, World, simulate
from tests.cli.test_diagnose import write_bundle

WORLD = World(seed=6, fault="registration", serial=False)
CAUSE = "registration.on_path"


@pytest.fixture(scope="module")
def clean() -> Bundle:
    return simulate(WORLD)


@pytest.fixture(scope="module")
def expected(clean: Bundle) -> Diagnosis:
    diagnosis = diagnose(clean)
    assert diagnosis.verdict.cause == CAUSE
    return diagnosis


def _excess(diagnosis: Diagnosis) -> float:
    return next(one.excess_mean_s for one in diagnosis.causes if one.id == CAUSE)


def _with_counters(bundle: Bundle, change: str) -> Bundle:
    def changed(one: CounterSeries) -> CounterSeries:
        time_s, value = one.time_s, one.value
        if change == "reset":
            # The process behind the counter restarts after forty seconds.
            again = time_s > START_S + 40
            return replace(one, value=np.where(again, value - value[again][0], value))
        if change == "gap":
            kept = (time_s < START_S + 35) | (time_s > START_S + 50)
        elif change == "late":
            kept = time_s > START_S + 8
        else:
            kept = np.arange(len(time_s)) % 5 == 0
        return replace(one, time_s=time_s[kept], value=value[kept])

    return replace(bundle, series=tuple(changed(one) for one in bundle.series))


@pytest.mark.parametrize("change", ["reset", "gap", "late", "every five seconds"])
def test_counters_that_reset_or_are_missing_for_a_while(clean: Bundle, expected: Diagnosis, change: str) -> None:
    diagnosis = diagnose(_with_counters(clean, change))
    assert diagnosis.verdict.cause == CAUSE
    assert _excess(diagnosis) == pytest.approx(_excess(expected), rel=0.1)


def _shuffled(path: Path, *, twice: int) -> None:
    lines = path.read_text().splitlines()
    random = np.random.default_rng(0)
    lines += [lines[row] for row in random.choice(len(lines), twice, replace=False)]
    path.write_text("\n".join(lines[row] for row in random.permutation(len(lines))) + "\n")


def test_rows_out_of_order_and_repeated_change_nothing(clean: Bundle, expected: Diagnosis, tmp_path: Path) -> None:
    folder = write_bundle(clean, tmp_path / "bundle")
    _shuffled(folder / "requests.jsonl", twice=50)
    _shuffled(folder / "counters.jsonl", twice=50)
    bundle = read_bundle(folder)
    assert any("50 row(s) repeat an earlier row exactly" in note for note in bundle.notes)
    diagnosis = diagnose(bundle)
    assert diagnosis.data.requests == expected.data.requests
    assert _excess(diagnosis) == pytest.approx(_excess(expected), rel=1e-3)
    assert diagnosis.verdict.cause == CAUSE


def test_one_request_is_too_few(clean: Bundle, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_bundle(clean, tmp_path / "bundle")
    lines = (folder / "requests.jsonl").read_text().splitlines()
    (folder / "requests.jsonl").write_text(lines[0] + "\n")
    assert main(["diagnose", str(folder)]) == 3
    assert "too few requests to name a cause: 1 in all" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("column", "factor", "words"),
    [
        ("wire_s", 1e3, "the stages add up to"),
        ("ttft_s", 1e3, "are both in seconds?"),
        ("arrival_s", 1e3, "is it in milliseconds"),
        ("prefill_s", 1e9, "is it in milliseconds or nanoseconds?"),
    ],
)
def test_a_column_in_another_unit_is_refused(
    clean: Bundle, tmp_path: Path, column: str, factor: float, words: str
) -> None:
    numbers = {**clean.requests.numbers, column: clean.requests.numbers[column] * factor}
    folder = write_bundle(replace(clean, requests=replace(clean.requests, numbers=numbers)), tmp_path / "bundle")
    with pytest.raises(InputError, match=words):
        read_bundle(folder)


def test_one_row_in_milliseconds_is_refused_by_its_line(clean: Bundle, tmp_path: Path) -> None:
    folder = write_bundle(clean, tmp_path / "bundle")
    lines = (folder / "requests.jsonl").read_text().splitlines()
    row = json.loads(lines[40])
    row["wire_s"] *= 1e3
    lines[40] = json.dumps(row)
    (folder / "requests.jsonl").write_text("\n".join(lines) + "\n")
    with pytest.raises(InputError, match=r"requests\.jsonl line 41: the stages add up to"):
        read_bundle(folder)


@pytest.mark.parametrize("word", ["NaN", "Infinity", "1e999"])
def test_a_number_that_is_none_is_refused_by_its_line(clean: Bundle, tmp_path: Path, word: str) -> None:
    folder = write_bundle(clean, tmp_path / "bundle")
    lines = (folder / "requests.jsonl").read_text().splitlines()
    lines[7] = '{"request_id": "odd", "arrival_s": 1760000001, "ttft_s": 0.1, "queue_s": ' + word + "}"
    (folder / "requests.jsonl").write_text("\n".join(lines) + "\n")
    with pytest.raises(InputError, match=r"requests\.jsonl line 8"):
        read_bundle(folder)


def test_counters_of_another_time_are_told(clean: Bundle, tmp_path: Path) -> None:
    # Milliseconds, or a clock that counts from boot.
    series = tuple(replace(one, time_s=one.time_s - START_S) for one in clean.series)
    bundle = read_bundle(write_bundle(replace(clean, series=series), tmp_path / "bundle"))
    assert any("none of them at the time of the requests" in note for note in bundle.notes)
    diagnosis = diagnose(bundle)
    assert diagnosis.verdict.cause in (None, CAUSE)
    assert any("none of them at the time of the requests" in note for note in diagnosis.data.notes)


@pytest.mark.parametrize(
    ("count", "announced"),
    [(30_000, True), (30_000, False), pytest.param(1_000_000, True, marks=pytest.mark.component)],
)
def test_any_number_of_identical_requests_is_no_change(count: int, announced: bool) -> None:
    constant = {"queue_s": 0.01, "prefill_s": 0.05, "wire_s": 0.02, "ttft_s": 0.08, "bytes": 1e6, "prompt_tokens": 9.0}
    numbers = {name: np.full(count, value) for name, value in constant.items()}
    numbers["arrival_s"] = START_S + np.arange(count) * 1e3 / count
    labels = {"decode_node": Labels(("d0",), np.zeros(count, dtype=np.int32))}
    requests = RequestColumns(ids=range(count), numbers=numbers, labels=labels)  # type: ignore[arg-type]
    diagnosis = diagnose(Bundle(origin="", requests=requests, incident_start_s=START_S + 400 if announced else None))
    assert (diagnosis.verdict.status, diagnosis.verdict.cause) == ("no_change", None)
    assert diagnosis.data.requests == count
    assert all(stage.share_of_variance == 0 for stage in diagnosis.stages)
    assert all(cause.excess_mean_s < 1e-9 for cause in diagnosis.causes)
