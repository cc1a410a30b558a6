"""Pressure of the hosts: named where nothing else explains, never in a fault's place."""

from dataclasses import replace

import numpy as np
import pytest

from kvdiag.attribution import diagnose
from kvdiag.model.bundle import Bundle, CounterSeries, MetricInfo
from tests.attribution.synthetic import World, simulate

METRIC = "host.cpu_stalled_us"


def pressed(world: World, before: float, after: float) -> Bundle:
    """Return the world's recording with that share of the time stalled on both nodes, before and after half time."""
    bundle = simulate(world)
    arrival_s = bundle.requests.numbers["arrival_s"]
    time_s = np.arange(arrival_s[0] - 5, arrival_s[-1] + 6)
    share = np.where(time_s > arrival_s.mean(), after, before) * np.random.default_rng(0).uniform(0.7, 1.3, len(time_s))
    series = tuple(
        CounterSeries(node=node, device=None, metric=METRIC, time_s=time_s, value=np.cumsum(share * 1e6))
        for node in ("prefill", "decode")
    )
    metrics = {**bundle.metrics, METRIC: MetricInfo(kind="counter", unit="us")}
    return replace(bundle, series=(*bundle.series, *series), metrics=metrics)


@pytest.mark.parametrize("slow", [1.5, 2.5])
def test_a_busy_host_is_named_where_its_processors_were_stalled(slow: float) -> None:
    for seed in range(3):
        found = diagnose(pressed(World(seed=seed, neighbour=slow), 0.05, 0.45))
        assert found.verdict.cause == "schedule.host_contention"
        line = next(one for one in found.causes[0].evidence if one.name.startswith(METRIC))
        assert "tasks waited for the host's processors 5% → 4" in line.value
        # The same slowness without a rise of pressure stays unexplained.
        assert diagnose(pressed(World(seed=seed, neighbour=slow), 0.4, 0.4)).verdict.status == "abstain"


@pytest.mark.parametrize(("fault", "cause"), [
    ("link", "fabric.link_degraded"), ("layout", "layout.fragmented"), ("registration", "registration.on_path"),
    ("none", None),
])  # fmt: skip
def test_pressure_that_rises_beside_takes_no_faults_place(fault: str, cause: str | None) -> None:
    for seed in range(3):
        assert diagnose(pressed(World(seed=seed, fault=fault), 0.05, 0.45)).verdict.cause == cause


def test_a_host_that_is_always_busy_is_not_named_for_what_does_not_follow_it() -> None:
    for seed in range(3):
        bundle = replace(pressed(World(seed=seed, serial=False), 0.4, 0.4), incident_start_s=None)
        random = np.random.default_rng(seed)
        numbers = dict(bundle.requests.numbers)
        stopped = np.where(random.random(len(numbers["ttft_s"])) < 0.25, random.uniform(0.0, 0.4), 0.0)
        numbers["wire_s"] = numbers["wire_s"] + stopped
        numbers["ttft_s"] = numbers["ttft_s"] + stopped
        found = diagnose(replace(bundle, requests=replace(bundle.requests, numbers=numbers)))
        assert found.baseline is None
        assert found.verdict.cause is None
        assert "schedule.host_contention" not in [one.id for one in found.causes]
