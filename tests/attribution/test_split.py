"""Troubles that begin, end, or both within the recording."""

from dataclasses import replace

import numpy as np
import pytest

from kvdiag.attribution import diagnose
from kvdiag.attribution.changepoint import ChangePoint
from kvdiag.attribution.frame import build_frame
from kvdiag.attribution.split import Split, choose_split, perhaps
from kvdiag.derive.stages import stage_matrix
from kvdiag.errors import UsageError
from kvdiag.model.bundle import Bundle
from tests.attribution.cluster import START_S as CLUSTER_START_S
from tests.attribution.cluster import Cluster
from tests.attribution.joined import one_after_the_other
from tests.attribution.recording import Recorder, record
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


@pytest.mark.parametrize("seed", [3, 5, 11])
def test_bursts_among_few_requests_are_compared_with_what_came_before(seed: int) -> None:
    world = Cluster(seed=seed, faults={"schedule.serial_pull": 0.9}, duty=0.3, rate=10)
    bundle, truth = record(world, Recorder(sampling=0.05, announced=False))
    split = choose_split(bundle, stage_matrix(bundle.requests), None)
    assert split.at_s is None
    unclear = perhaps(split)
    assert unclear is not None
    assert unclear.at_s == pytest.approx(CLUSTER_START_S + world.start * world.seconds, abs=10)
    diagnosis = diagnose(bundle)
    assert diagnosis.verdict.cause == "schedule.serial_pull"
    assert diagnosis.baseline is not None
    assert diagnosis.data.split.startswith("no clear change point")
    assert diagnosis.causes[0].excess_mean_s == pytest.approx(truth.excess_mean_s, rel=0.3)


def test_an_unclear_change_point_needs_a_rise_and_is_none_where_a_start_is_known() -> None:
    point = ChangePoint(START_S + 30, "wire_s", 1.5, 0.02)
    assert perhaps(Split(None, "no change point: ...", point)) is not None
    assert perhaps(Split(None, "no change point: ...", replace(point, change_s=-0.02))) is None
    assert perhaps(Split(None, "no change point: ...", replace(point, statistic=0.9))) is None
    assert perhaps(Split(None, "no change point")) is None
    assert perhaps(Split(START_S, "given", point)) is None


@pytest.mark.parametrize("seed", range(4))
def test_where_nothing_was_injected_an_unclear_change_point_names_nothing(seed: int) -> None:
    bundle, _ = record(Cluster(seed=seed, drift=(1.1, 1.05)), Recorder(announced=False, decoys=3, sampling=0.2))
    assert not (diagnose(bundle).verdict.cause or "").startswith(("fabric.", "registration.", "connection."))


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


@pytest.mark.parametrize("seed", [0, 1, 3])
def test_what_slowed_down_is_the_incident_though_chance_made_the_rest_as_slow(seed: int) -> None:
    bundle = simulate(World(seed=seed, fault="link"))
    numbers = dict(bundle.requests.numbers)
    early = numbers["arrival_s"] < START_S + 30
    stalled = early & (np.random.default_rng(seed).random(early.size) < 0.1)
    lead_s = numbers["ttft_s"][~early].mean() - numbers["ttft_s"][early].mean() + 0.004
    for name in ("first_step_s", "ttft_s"):
        numbers[name] = numbers[name] + np.where(stalled, lead_s * early.sum() / stalled.sum(), 0.0)
    bundle = replace(bundle, incident_start_s=None, requests=replace(bundle.requests, numbers=numbers))
    diagnosis = diagnose(bundle)
    assert diagnosis.verdict.cause == "fabric.link_degraded"
    assert diagnosis.incident is not None
    assert diagnosis.incident.start_s == pytest.approx(START_S + 30, abs=3)
