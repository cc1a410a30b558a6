"""What happens at the 99th percentile, where it is not what happens to the mean."""

from dataclasses import replace

import numpy as np
import pytest

from kvdiag.attribution import diagnose
from kvdiag.attribution.blocks import moments
from kvdiag.attribution.frame import build_frame
from kvdiag.attribution.tail import tail_change
from kvdiag.derive.stages import stage_matrix
from kvdiag.model.bundle import Bundle
from tests.attribution.synthetic import START_S, World, simulate


def _stalled(share: float, seconds: float, requests: int = 3000) -> Bundle:
    """Return a healthy recording in whose second half a share of the requests stalls in its first step."""
    bundle = simulate(World(seed=8, requests=requests, seconds=120, serial=False, noise=0.3))
    late = bundle.requests.numbers["arrival_s"] >= START_S + 60
    stalled = late & (np.random.default_rng(1).random(len(late)) < share)
    numbers = dict(bundle.requests.numbers)
    for name in ("first_step_s", "ttft_s"):
        numbers[name] = numbers[name] + np.where(stalled, seconds, 0.0)
    return replace(bundle, requests=replace(bundle.requests, numbers=numbers))


def test_the_change_of_the_tail_has_an_interval() -> None:
    bundle = _stalled(0.03, 1.0)
    frame = build_frame(bundle, stage_matrix(bundle.requests), START_S + 60)
    total = frame.stages.ttft_s
    blocks = [
        moments(np.ones((int(rows.sum()), 1)), frame.clock(which), 0.0, frame.period_s(which), total[rows])
        for which, rows in ((False, ~frame.incident), (True, frame.incident))
    ]
    found = tail_change(frame, blocks, 200, np.random.default_rng(0))
    exact = np.quantile(total[frame.incident], 0.99) - np.quantile(total[~frame.incident], 0.99)
    assert found.change_s == pytest.approx(exact)
    assert 0.8 < found.low_s <= found.change_s <= found.high_s < 1.2


def test_a_tail_that_grows_while_the_mean_stays_is_said() -> None:
    diagnosis = diagnose(_stalled(0.02, 0.16))
    assert (diagnosis.verdict.status, diagnosis.verdict.cause) == ("abstain", None)
    assert "the mean hardly changed, but p99 rose by" in diagnosis.verdict.reason
    assert diagnosis.verdict.collect_next


def test_a_tail_that_stays_is_no_change() -> None:
    assert diagnose(_stalled(0.0, 0.0)).verdict.status == "no_change"


@pytest.mark.parametrize("seconds", [0.8, 1.2])
def test_a_large_rise_of_uncertain_size_is_not_no_change(seconds: float) -> None:
    verdict = diagnose(_stalled(0.01, seconds, requests=400)).verdict
    assert (verdict.status, verdict.cause) == ("abstain", None)
    assert verdict.reason.startswith("mean TTFT rose by ")
