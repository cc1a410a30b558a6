import json
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from kvdiag.derive import timeline as module
from kvdiag.derive.timeline import timeline
from kvdiag.model.bundle import BundleEvent
from kvdiag.report.trace import encode
from tests.attribution.synthetic import START_S, World, simulate


def test_stages_follow_each_other_inside_their_request() -> None:
    bundle = simulate(World(seed=1, requests=50, seconds=10))
    trace = timeline(bundle)
    (first, *stages) = trace.slices[: next(i for i, s in enumerate(trace.slices) if i and s.category == "request")]
    assert first.category == "request"
    assert first.process == "prefill"
    assert first.arguments["decode_node"] == "decode"
    assert stages[0].start_s == first.start_s
    for one, following in pairwise(stages):
        assert following.start_s == pytest.approx(one.start_s + one.duration_s)
    assert sum(one.duration_s for one in stages) == pytest.approx(first.duration_s)


def test_counters_are_rates_without_the_reset() -> None:
    bundle = simulate(World(seed=1, requests=50, seconds=10))
    one = next(series for series in bundle.series if series.metric == "nic.tx_bytes")
    again = replace(one, time_s=START_S + np.arange(4.0), value=np.array([10.0, 30.0, 5.0, 9.0]))
    trace = timeline(replace(bundle, series=(again,), events=(BundleEvent(time_s=START_S, kind="link_down"),)))
    assert [(sample.at_s - START_S, sample.value) for sample in trace.counters] == [(1.0, 20.0), (3.0, 4.0)]
    assert trace.instants[0].name == "link_down"
    document = json.loads(encode(trace))
    assert {event["ph"] for event in document["traceEvents"]} == {"X", "i", "C", "M"}


def test_of_too_many_requests_the_slowest_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_REQUESTS", 10)
    bundle = simulate(World(seed=1, requests=100, seconds=10))
    trace = timeline(bundle)
    kept = [one.duration_s for one in trace.slices if one.category == "request"]
    assert len(kept) == 10
    assert min(kept) >= sorted(bundle.requests.numbers["ttft_s"])[-10]
    assert trace.about["requests"].startswith("10 of")


def test_of_too_many_counter_samples_means_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_SAMPLES", 10)
    bundle = simulate(World(seed=1, requests=50, seconds=10))
    one = next(series for series in bundle.series if series.metric == "nic.tx_bytes")
    long = replace(one, time_s=START_S + np.arange(101.0), value=np.cumsum(np.arange(101.0)))
    trace = timeline(replace(bundle, series=(long,)))
    assert [sample.value for sample in trace.counters] == pytest.approx([5.5 + 10 * number for number in range(10)])
    assert [sample.at_s - START_S for sample in trace.counters] == [1.0 + 10 * number for number in range(10)]
    assert trace.about["counter_samples"] == "10 means over time of 100"
