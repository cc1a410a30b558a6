"""Offsets of nodes' clocks, read off their own traffic."""

from dataclasses import replace

import numpy as np
import pytest

from kvdiag.attribution.clocks import aligned, find_offsets
from kvdiag.derive.stages import stage_matrix
from kvdiag.model.bundle import Bundle, BundleEvent
from tests.attribution.cluster import Cluster
from tests.attribution.recording import Recorder, record

TRUE = {"p0": 1.9, "p1": -0.7, "p2": 0.0, "d0": -2.0, "d1": 1.25, "d2": 0.4}


def _shifted(sampling: float, granularity: str = "full") -> Bundle:
    recorder = Recorder(sampling=sampling, granularity=granularity, clocks_s=0.0)
    bundle, _ = record(Cluster(seed=7, rate=20, faults={"fabric.loss": 2.0}), recorder)
    return replace(bundle, series=tuple(replace(s, time_s=s.time_s + TRUE[s.node]) for s in bundle.series))


@pytest.mark.parametrize(
    ("sampling", "granularity", "most"), [(1.0, "full", 0.15), (1.0, "coarse", 0.3), (0.1, "full", 0.3)]
)
def test_every_node_is_found(sampling: float, granularity: str, most: float) -> None:
    bundle = _shifted(sampling, granularity)
    found = find_offsets(bundle, stage_matrix(bundle.requests))
    assert found.keys() == TRUE.keys()
    assert max(abs(found[node].seconds - true) for node, true in TRUE.items()) < most
    assert all(offset.score > 3.5 for offset in found.values())


def test_traffic_of_others_shows_no_offset() -> None:
    bundle = _shifted(1.0)
    random = np.random.default_rng(3)
    size = bundle.requests.numbers["bytes"]
    numbers = {
        **bundle.requests.numbers,
        "arrival_s": np.sort(random.choice(bundle.requests.numbers["arrival_s"], len(size))),
    }
    noise = tuple(
        replace(one, value=np.cumsum(random.exponential(1e8, len(one.value)))) if one.metric.endswith("_bytes") else one
        for one in bundle.series
    )
    other = replace(bundle, series=noise, requests=replace(bundle.requests, numbers=numbers))
    assert len(find_offsets(other, stage_matrix(other.requests))) <= 1


def test_counters_and_events_are_put_on_the_requests_clock() -> None:
    bundle = _shifted(1.0)
    first = float(bundle.requests.numbers["arrival_s"][0])
    bundle = replace(bundle, events=(BundleEvent(time_s=first, node="d0"), BundleEvent(time_s=first)))
    found = find_offsets(bundle, stage_matrix(bundle.requests))
    moved = aligned(bundle, found)
    for before, after in zip(bundle.series, moved.series, strict=True):
        assert np.allclose(before.time_s - after.time_s, found[before.node].seconds)
    assert sorted(one.time_s - first for one in moved.events) == pytest.approx([0.0, 2.0], abs=0.2)
    assert aligned(bundle, {}) is bundle


def test_without_bytes_or_counters_nothing_is_known() -> None:
    bundle = _shifted(1.0)
    numbers = {name: values for name, values in bundle.requests.numbers.items() if name != "bytes"}
    blind = replace(bundle, requests=replace(bundle.requests, numbers=numbers))
    assert find_offsets(blind, stage_matrix(blind.requests)) == {}
    alone = replace(bundle, series=())
    assert find_offsets(alone, stage_matrix(alone.requests)) == {}
