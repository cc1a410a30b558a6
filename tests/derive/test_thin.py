import numpy as np
import pytest

from kvdiag.attribution import diagnose, diagnose_live
from kvdiag.derive.thin import LIVE_ROWS, thinned
from tests.attribution.synthetic import World, simulate


def test_rows_are_drawn_evenly_over_time_and_the_share_is_told() -> None:
    bundle = simulate(World(seed=1, requests=2000))
    few = thinned(bundle, 300)
    times = few.requests.numbers["arrival_s"]
    assert 250 <= len(few.requests) <= 300
    assert (np.diff(times) >= 0).all()
    assert few.sampling == pytest.approx(len(few.requests) / len(bundle.requests))
    assert abs(np.median(times) - np.median(bundle.requests.numbers["arrival_s"])) < 1
    assert few.series is bundle.series
    assert any("recorded requests were looked at" in note for note in few.notes)
    assert thinned(bundle, 10_000) is bundle


def test_a_live_window_is_diagnosed_from_a_part_of_it() -> None:
    bundle = simulate(World(seed=1, fault="layout", requests=20_000, seconds=600, serial=False))
    whole, live = diagnose(bundle), diagnose_live(bundle)
    assert live.data.requests <= LIVE_ROWS
    assert live.verdict.cause == whole.verdict.cause == "layout.fragmented"
    assert live.causes[0].excess_mean_s == pytest.approx(whole.causes[0].excess_mean_s, rel=0.2)


@pytest.mark.parametrize("fault", ["none", "link"])
def test_a_live_window_gets_the_verdict_of_the_whole_one(fault: str) -> None:
    bundle = simulate(World(seed=2, fault=fault, requests=15_000, seconds=600, serial=False))
    whole, live = diagnose(bundle).verdict, diagnose_live(bundle).verdict
    assert (live.status, live.cause) == (whole.status, whole.cause)
    assert whole.cause == ("fabric.link_degraded" if fault == "link" else None)
