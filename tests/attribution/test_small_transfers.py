"""Small and few transfers, as two emulated machines record them: what little there is to see of a fault counts."""

from dataclasses import replace

import numpy as np
import pytest

from kvdiag.attribution import diagnose
from kvdiag.attribution.frame import standing_frame
from kvdiag.attribution.standing import expected_stages
from kvdiag.derive.stages import stage_matrix
from kvdiag.model.bundle import Bundle, CounterSeries, MetricInfo
from kvdiag.model.diagnosis import Diagnosis
from kvdiag.model.missing import Missing
from tests.attribution.synthetic import START_S, World, simulate

SECONDS = 150.0
FEW = World(seed=0, requests=300, seconds=SECONDS, serial=False, slot=True, noise=0.3)


def with_counter(bundle: Bundle, metric: str, node: str, per_s: np.ndarray, device: str | None = None) -> Bundle:
    """Return the bundle with a counter that grows by so much in each of its seconds."""
    time_s = START_S + np.arange(len(per_s) + 1.0)
    value = np.concatenate([[0.0], np.cumsum(per_s)])
    series = CounterSeries(node=node, device=device, metric=metric, time_s=time_s, value=value)
    kept = tuple(one for one in bundle.series if (one.metric, one.node) != (metric, node))
    metrics = {**bundle.metrics, metric: MetricInfo(kind="counter", unit="")}
    return replace(bundle, series=(*kept, series), metrics=metrics)


def slower(bundle: Bundle, **stages: np.ndarray) -> Bundle:
    """Return the bundle with seconds added to stages, and to TTFT."""
    numbers = dict(bundle.requests.numbers)
    for stage, seconds in stages.items():
        numbers[stage] = numbers[stage] + seconds
        numbers["ttft_s"] = numbers["ttft_s"] + seconds
    return replace(bundle, requests=replace(bundle.requests, numbers=numbers))


def risen(found: Diagnosis) -> float:
    assert found.baseline is not None
    assert found.incident is not None
    return found.incident.mean_s - found.baseline.mean_s


def few_losses(seed: int, cost_s: float) -> Bundle:
    """Return two requests a second, 0.6 packets sent again per second of the second half, and processors kept busy."""
    random = np.random.default_rng(seed)
    bundle = replace(simulate(replace(FEW, seed=seed, counters=False)), incident_start_s=None)
    offset_s = bundle.requests.numbers["arrival_s"] - START_S
    late = np.arange(SECONDS) >= SECONDS / 2
    again = np.where(late, random.poisson(0.6, int(SECONDS)), 0)
    lost = (again[offset_s.astype(int)] > 0) & (random.random(len(offset_s)) < 0.5)
    bundle = slower(bundle, wire_s=np.where(lost, random.uniform(0.5, 1.5, len(offset_s)) * cost_s, 0.0))
    for node in ("prefill", "decode"):
        stalled = np.where(late, 2.3e5, 1e5) * random.uniform(0.8, 1.2, int(SECONDS))
        bundle = with_counter(bundle, "host.cpu_stalled_us", node, stalled)
    return with_counter(bundle, "nic.retransmits", "prefill", again.astype(float), "rxe0/1")


def test_less_than_one_packet_a_second_is_loss_where_requests_are_few_and_wait_for_it() -> None:
    for seed in range(2):
        found = diagnose(few_losses(seed, cost_s=0.1), START_S + SECONDS / 2)
        assert found.verdict.cause == "fabric.loss"
        assert "+ 0." in str(found.causes[0].evidence[1].threshold)  # below one packet a second
        assert found.causes[0].excess_mean_s == pytest.approx(risen(found), rel=0.4)


def test_a_loss_that_costs_little_is_told_with_little_and_not_named() -> None:
    found = diagnose(few_losses(1, cost_s=0.015), START_S + SECONDS / 2)
    assert found.verdict.cause is None
    loss = next(one for one in found.causes if one.id == "fabric.loss")
    assert 0 < loss.excess_mean_s < 0.005


def test_requests_that_wait_behind_a_stall_count_for_what_stalled() -> None:
    for seed in range(2):
        found = diagnose(simulate(replace(FEW, seed=seed, requests=500, seconds=60, fault="loss", size=0.5)))
        assert found.verdict.cause == "fabric.loss"
        assert found.causes[0].excess_mean_s > 0.7 * risen(found)


def over_tcp(seed: int, before: float, after: float) -> Bundle:
    """Return a recording of which a share of the bytes came over TCP, before and after half time."""
    world = replace(FEW, seed=seed, always=True)
    bundle = replace(simulate(world), incident_start_s=None)
    numbers = bundle.requests.numbers
    second = (numbers["arrival_s"] - START_S).astype(int)
    share = np.where(np.arange(SECONDS) < SECONDS / 2, before, after)
    carried = np.bincount(second, weights=numbers["bytes"], minlength=int(SECONDS))[: int(SECONDS)]
    bundle = slower(bundle, wire_s=2 * share[second] * numbers["wire_s"], post_s=0.004 * share[second])
    return with_counter(bundle, "host.tcp_rx_bytes", "decode", carried * share)


def test_that_transfers_went_over_to_tcp_is_a_change_of_its_own() -> None:
    for seed in range(2):
        found = diagnose(over_tcp(seed, 0.0, 1.0))
        assert found.verdict.cause == "fabric.tcp_fallback"
        assert found.incident is not None
        assert abs(found.incident.start_s - START_S - SECONDS / 2) < 8


def small_model(seed: int) -> Bundle:
    """Return transfers of eight descriptors of 12 KB, each of which takes 20 ms to post and to arrive."""
    bundle = replace(simulate(replace(FEW, seed=seed)), incident_start_s=None)
    count = len(bundle.requests)
    random = np.random.default_rng(seed)
    numbers = {**bundle.requests.numbers, "descriptors": np.full(count, 8.0)}
    numbers["bytes"] = numbers["bytes"] / np.mean(numbers["bytes"]) * 96e3
    bundle = replace(bundle, requests=replace(bundle.requests, numbers=numbers))
    return slower(bundle, post_s=random.uniform(5e-3, 15e-3, count), wire_s=random.uniform(5e-3, 15e-3, count))


def test_a_handful_of_small_descriptors_is_no_fragmented_layout() -> None:
    for seed in range(2):
        found = diagnose(small_model(seed))
        assert found.baseline is None
        assert found.verdict.cause is None
        assert "layout.fragmented" not in [one.id for one in found.causes]


def test_posting_is_expected_shorter_by_no_more_than_its_descriptors_can_cost() -> None:
    bundle = small_model(0)
    frame = standing_frame(bundle, stage_matrix(bundle.requests))
    post = frame.stages.names.index("post_s")
    expected = expected_stages(frame, Missing("no turns"))[:, post]
    quick = frame.stages.seconds[:, post] < 6e-3
    assert (expected <= frame.stages.seconds[:, post] + 1e-12)[quick].mean() > 0.5


def test_more_descriptors_for_the_same_bytes_are_a_change_of_their_own() -> None:
    for seed in range(2):
        bundle = small_model(seed)
        numbers = dict(bundle.requests.numbers)
        late = numbers["arrival_s"] >= START_S + SECONDS / 2
        numbers["descriptors"] = np.where(late, np.ceil(numbers["bytes"] / 1024), 8.0)
        bundle = replace(bundle, requests=replace(bundle.requests, numbers=numbers))
        found = diagnose(slower(bundle, wire_s=np.where(late, 1.2e-4 * numbers["descriptors"], 0.0)))
        assert "found by CUSUM: descriptors per byte" in found.data.split
        assert found.verdict.cause == "layout.fragmented"
        assert found.causes[0].excess_mean_s == pytest.approx(risen(found), rel=0.4)
