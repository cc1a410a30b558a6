"""Little or odd data ends in a statement, never in a crash or a wrong name."""

from dataclasses import replace

import numpy as np
import pytest

from kvdiag.attribution import diagnose
from kvdiag.model.bundle import Bundle
from tests.attribution.synthetic import START_S, World, simulate

LAYOUT = "layout.fragmented"


@pytest.fixture(scope="module")
def bundle() -> Bundle:
    return simulate(World(seed=1, fault="layout"))


def _rows(bundle: Bundle, rows: list[int]) -> Bundle:
    requests = bundle.requests
    return replace(
        bundle,
        requests=replace(
            requests,
            ids=[requests.ids[row] for row in rows],
            numbers={name: values[rows] for name, values in requests.numbers.items()},
            labels={name: replace(label, codes=label.codes[rows]) for name, label in requests.labels.items()},
        ),
    )


def _without(bundle: Bundle, *names: str) -> Bundle:
    kept = {name: values for name, values in bundle.requests.numbers.items() if name not in names}
    return replace(bundle, requests=replace(bundle.requests, numbers=kept))


@pytest.mark.parametrize("rows", [[0], [0, 400], [*range(20), *range(400, 420)]])
def test_a_handful_of_requests(bundle: Bundle, rows: list[int]) -> None:
    verdict = diagnose(_rows(bundle, rows)).verdict
    assert (verdict.status, verdict.cause) == ("abstain", None)
    assert "too few requests" in verdict.reason


@pytest.mark.parametrize(
    ("missing", "cause"),
    [
        (("prompt_tokens",), LAYOUT),
        (("first_step_s",), LAYOUT),
        (("bytes",), None),
        (("descriptors",), None),
        (("bytes", "descriptors", "prompt_tokens", "post_s", "wire_s", "register_s"), None),
    ],
)
def test_missing_columns(bundle: Bundle, missing: tuple[str, ...], cause: str | None) -> None:
    diagnosis = diagnose(_without(bundle, *missing))
    assert diagnosis.verdict.cause == cause
    assert abs(sum(stage.share_of_variance for stage in diagnosis.stages) - 1) < 1e-9
    if cause is None:
        assert diagnosis.verdict.status == "abstain"
        assert diagnosis.verdict.collect_next


def test_no_node_names(bundle: Bundle) -> None:
    assert diagnose(replace(bundle, requests=replace(bundle.requests, labels={}))).verdict.cause == LAYOUT


def test_no_bytes_in_any_transfer(bundle: Bundle) -> None:
    numbers = {**bundle.requests.numbers, "bytes": np.zeros(len(bundle.requests))}
    diagnosis = diagnose(replace(bundle, requests=replace(bundle.requests, numbers=numbers)))
    assert diagnosis.verdict.status == "abstain"


def test_rows_with_gaps(bundle: Bundle) -> None:
    numbers = {name: values.copy() for name, values in bundle.requests.numbers.items()}
    numbers["wire_s"][::5] = np.nan
    numbers["bytes"][::7] = np.nan
    diagnosis = diagnose(replace(bundle, requests=replace(bundle.requests, numbers=numbers)))
    assert diagnosis.verdict.cause == LAYOUT
    assert any("wire_s is null in" in note for note in diagnosis.data.notes)
    assert diagnosis.stages[-1].mean_incident_s > 0


def test_an_announced_start_at_the_very_end_leaves_too_little(bundle: Bundle) -> None:
    verdict = diagnose(replace(bundle, incident_start_s=START_S + 59.5)).verdict
    assert verdict.status == "abstain"
    assert "after the change" in verdict.reason


def test_an_announced_start_outside_the_recording_is_searched_instead(bundle: Bundle) -> None:
    diagnosis = diagnose(replace(bundle, incident_start_s=5.0))
    assert diagnosis.verdict.cause == LAYOUT
    assert "announced start lies outside" in diagnosis.data.split


def test_all_requests_at_one_instant(bundle: Bundle) -> None:
    numbers = {**bundle.requests.numbers, "arrival_s": np.full(len(bundle.requests), START_S)}
    diagnosis = diagnose(replace(bundle, requests=replace(bundle.requests, numbers=numbers)))
    assert diagnosis.verdict.cause is None
