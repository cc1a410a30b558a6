"""Troubles that begin, end, or both within the recording."""

import numpy as np
import pytest

from kvdiag.attribution import diagnose
from kvdiag.attribution.frame import build_frame
from kvdiag.derive.stages import stage_matrix
from kvdiag.errors import UsageError
from kvdiag.model.bundle import Bundle
from tests.attribution.joined import one_after_the_other
from tests.attribution.synthetic import START_S, World, simulate


def _healthy(seed: int) -> Bundle:
    return simulate(World(seed=seed, serial=False))


def _layout(seed: int) -> Bundle:
    return simulate(World(seed=seed, fault="layout", always=True, serial=False))


def test_a_trouble_that_ends_is_compared_with_what_follows() -> None:
    diagnosis = diagnose(one_after_the_other(_layout(1), _healthy(2)))
    assert diagnosis.verdict.cause == "layout.fragmented"
    assert "what comes first is the worse" in diagnosis.data.split
    assert diagnosis.baseline is not None
    assert diagnosis.incident is not None
    assert diagnosis.baseline.start_s > diagnosis.incident.start_s
    assert abs(diagnosis.incident.end_s - START_S - 60) < 3


def test_a_trouble_that_comes_and_goes_is_compared_with_before_and_after() -> None:
    diagnosis = diagnose(one_after_the_other(_healthy(1), _layout(2), _healthy(3)))
    assert diagnosis.verdict.cause == "layout.fragmented"
    assert "the rest the baseline" in diagnosis.data.split
    assert diagnosis.baseline is not None
    assert diagnosis.incident is not None
    assert abs(diagnosis.incident.start_s - START_S - 60) < 5
    assert abs(diagnosis.incident.seconds - 60) < 6
    assert abs(diagnosis.baseline.seconds - 120) < 6
    change = diagnosis.incident.mean_s - diagnosis.baseline.mean_s
    assert abs(sum(cause.excess_mean_s for cause in diagnosis.causes) - change) < 1e-6


def test_the_end_can_be_given_as_well() -> None:
    bundle = one_after_the_other(_healthy(1), _layout(2), _healthy(3))
    diagnosis = diagnose(bundle, START_S + 60, incident_end_s=START_S + 120)
    assert diagnosis.verdict.cause == "layout.fragmented"
    assert diagnosis.incident is not None
    assert diagnosis.incident.seconds == pytest.approx(60)


@pytest.mark.parametrize(("start", "end", "words"), [(None, 60, "needs --incident-start"), (60, 30, "is not after")])
def test_an_impossible_end_is_refused(start: float | None, end: float, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        diagnose(_healthy(1), None if start is None else START_S + start - 20, incident_end_s=START_S + end - 20)


def test_rates_of_a_baseline_around_the_incident_are_weighted_by_time() -> None:
    bundle = one_after_the_other(_healthy(1), _layout(2), _healthy(3))
    frame = build_frame(bundle, stage_matrix(bundle.requests), START_S + 60, START_S + 90)
    assert frame.period_s(incident=True) == pytest.approx(30)
    assert frame.spans(incident=False)[1][0] == START_S + 90
    rate = frame.rates("nic.tx_bytes")["prefill"]
    moved = bundle.requests.numbers["bytes"][~frame.incident].sum() * 1.02 / frame.period_s(incident=False)
    assert rate.base == pytest.approx(moved, rel=0.1)
    clock = frame.clock(incident=False)
    assert (np.diff(clock) >= 0).all()
    assert clock[-1] <= frame.period_s(incident=False) + 1e-6
