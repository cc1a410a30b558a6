from dataclasses import replace

import numpy as np
import pytest

from kvdiag.attribution import diagnose
from kvdiag.derive.compare import GAP_S, before_and_after
from kvdiag.errors import InputError, UndeterminedError
from kvdiag.model.bundle import Bundle, CounterSeries, MetricInfo
from tests.attribution.synthetic import START_S, World, simulate


def _healthy(seed: int) -> Bundle:
    return replace(simulate(World(seed=seed, serial=False)), incident_start_s=None)


def _layout(seed: int) -> Bundle:
    return simulate(World(seed=seed, fault="layout", always=True, serial=False))


def test_what_a_change_cost_is_named() -> None:
    diagnosis = diagnose(before_and_after(_healthy(1), _layout(2)))
    assert diagnosis.verdict.cause == "layout.fragmented"
    assert diagnosis.baseline is not None
    assert diagnosis.baseline.requests == len(_healthy(1).requests)
    assert "announced" in diagnosis.data.split


def test_what_a_change_gained_and_no_change() -> None:
    better = diagnose(before_and_after(_layout(2), _healthy(1)))
    assert (better.verdict.status, better.verdict.cause) == ("no_change", None)
    assert "mean TTFT fell" in better.verdict.reason
    assert diagnose(before_and_after(_healthy(1), _healthy(4))).verdict.status == "no_change"


def test_a_recording_that_is_compared_with_itself_is_noted() -> None:
    said = "both recordings hold the same requests: this compares a recording with itself"
    assert before_and_after(_healthy(1), _healthy(1)).notes[0] == said
    assert said not in before_and_after(_healthy(1), _healthy(4)).notes


def test_one_clock_and_counters_without_a_jump() -> None:
    before, after = _healthy(1), _healthy(2)
    late = tuple(replace(one, value=one.value + 1e15, time_s=one.time_s + 1e6) for one in after.series)
    arrival = after.requests.numbers["arrival_s"] + 1e6
    after = replace(
        after,
        series=late,
        requests=replace(after.requests, numbers={**after.requests.numbers, "arrival_s": arrival}),
    )
    joint = before_and_after(before, after)
    times = joint.requests.numbers["arrival_s"]
    assert (np.diff(times) >= 0).all()
    assert joint.incident_start_s == pytest.approx(before.requests.numbers["arrival_s"][-1] + GAP_S)
    for one in joint.series:
        assert (np.diff(one.time_s) > 0).all()
        assert np.ptp(one.value) < 1e14
    assert len(set(joint.requests.ids)) == len(times)


def test_a_finer_recording_is_added_up_to_the_coarser() -> None:
    fine, coarse = _healthy(1), _healthy(2)
    numbers = dict(coarse.requests.numbers)
    parts = [numbers.pop(name) for name in ("pull_wait_s", "register_s", "post_s", "wire_s")]
    numbers["kv_wait_s"] = np.sum(parts, axis=0)
    joint = before_and_after(fine, replace(coarse, requests=replace(coarse.requests, numbers=numbers)))
    assert "wire_s" not in joint.requests.numbers
    own = np.sum([fine.requests.numbers[n] for n in ("pull_wait_s", "register_s", "post_s", "wire_s")], axis=0)
    assert joint.requests.numbers["kv_wait_s"][: len(own)] == pytest.approx(own)


def test_the_denser_sample_is_thinned() -> None:
    joint = before_and_after(_healthy(1), replace(_healthy(2), sampling=0.25))
    first = int((joint.requests.numbers["arrival_s"] < (joint.incident_start_s or 0)).sum())
    assert first == pytest.approx(0.25 * len(_healthy(1).requests), rel=0.25)
    assert joint.sampling == 0.25


def test_gauges_are_joined_as_they_are() -> None:
    def gauge(value: float) -> CounterSeries:
        return CounterSeries(
            node="d", device=None, metric="nic.link_gbps", time_s=START_S + np.arange(60.0), value=np.full(60, value)
        )

    metrics = {"nic.link_gbps": MetricInfo(kind="gauge", unit="")}
    pair = [replace(_healthy(s), series=(gauge(v),), metrics=metrics) for s, v in ((1, 100.0), (2, 25.0))]
    (joint,) = before_and_after(*pair).series
    assert sorted(set(joint.value.tolist())) == [25.0, 100.0]


def test_what_cannot_be_compared_is_refused() -> None:
    bundle = _healthy(1)
    with pytest.raises(InputError, match="one is of windows"):
        before_and_after(bundle, replace(bundle, window_s=15.0))
    kept = {name: bundle.requests.numbers[name] for name in ("arrival_s", "ttft_s", "queue_s")}
    other = {name: bundle.requests.numbers[name] for name in ("arrival_s", "ttft_s", "wire_s")}
    with pytest.raises(UndeterminedError, match="no stage of TTFT in common"):
        before_and_after(*(replace(bundle, requests=replace(bundle.requests, numbers=one)) for one in (kept, other)))
