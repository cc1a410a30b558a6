"""Without a baseline: what is bad all along, held against what bytes, links and peers let expect."""

from dataclasses import replace

import numpy as np
import pytest

from kvdiag.attribution import diagnose
from kvdiag.attribution.frame import standing_frame
from kvdiag.attribution.standing import expected_stages
from kvdiag.attribution.waves import arrival_waves, hit_waves, spread
from kvdiag.derive.stages import PARTS, stage_matrix
from kvdiag.model.bundle import Bundle, CounterSeries, Labels, MetricInfo
from tests.attribution.synthetic import START_S, World, simulate


def _with_stage(bundle: Bundle, name: str, seconds: np.ndarray) -> Bundle:
    numbers = dict(bundle.requests.numbers)
    numbers[name] = numbers.get(name, 0.0) + seconds
    numbers["ttft_s"] = numbers["ttft_s"] + seconds
    return replace(bundle, requests=replace(bundle.requests, numbers=numbers))


@pytest.mark.parametrize(
    ("fault", "cause"), [("registration", "registration.on_path"), ("layout", "layout.fragmented")]
)
def test_a_fault_that_was_there_from_the_first_request_is_named(fault: str, cause: str) -> None:
    for seed in range(8):
        diagnosis = diagnose(simulate(World(seed=seed, fault=fault, always=True, serial=False)))
        assert diagnosis.baseline is None
        assert (diagnosis.verdict.cause, diagnosis.causes[0].id) == (cause, cause)
        assert "whole period" in diagnosis.verdict.reason


def test_a_healthy_period_names_nothing_however_load_and_prompts_vary() -> None:
    for seed in range(20):
        bundle = replace(simulate(World(seed=seed, serial=seed % 2 == 0)), incident_start_s=None)
        assert diagnose(bundle).verdict.cause is None


def test_the_books_add_up_to_what_is_above_expectation() -> None:
    diagnosis = diagnose(simulate(World(seed=1, fault="registration", always=True)))
    above = sum(one.mean_incident_s - (one.mean_expected_s or 0.0) for one in diagnosis.stages)
    assert sum(cause.excess_mean_s for cause in diagnosis.causes) == pytest.approx(above, abs=1e-6)
    assert sum(stage.share_of_variance for stage in diagnosis.stages) == pytest.approx(1, abs=1e-9)
    register = next(one for one in diagnosis.stages if one.stage == "register_s")
    assert register.mean_expected_s == 0
    assert diagnosis.causes[0].excess_mean_s == pytest.approx(register.mean_incident_s, rel=0.1)
    first = diagnosis.causes[0]
    assert first.excess_mean_low_s < 0.75 * first.excess_mean_s
    assert first.excess_mean_high_s > 1.35 * first.excess_mean_s
    assert any(step.title == "Expectation" for step in diagnosis.steps)


def test_a_link_that_reports_less_than_its_peers_is_named_on_its_node() -> None:
    bundle = simulate(World(seed=3, requests=1200, seconds=120, serial=False))
    count = len(bundle.requests)
    decode = np.random.default_rng(0).integers(0, 3, count).astype(np.int32)
    labels = {**bundle.requests.labels, "decode_node": Labels(("d0", "d1", "d2"), decode)}
    slow = _with_stage(bundle, "wire_s", np.where(decode == 1, 3 * bundle.requests.numbers["wire_s"], 0.0))
    time_s = START_S + np.arange(121.0)
    series = tuple(
        CounterSeries(
            node=node, device=None, metric="nic.link_gbps", time_s=time_s, value=np.full(121, 100.0 if slow else 400.0)
        )
        for node, slow in (("d0", False), ("d1", True), ("d2", False), ("prefill", False))
    )
    slow = replace(
        slow,
        incident_start_s=None,
        requests=replace(slow.requests, labels=labels),
        series=series,
        metrics={"nic.link_gbps": MetricInfo(kind="gauge", unit="")},
    )
    diagnosis = diagnose(slow)
    assert diagnosis.causes[0].id == "fabric.link_degraded"
    assert diagnosis.causes[0].nodes == ("d1",)


def test_seconds_that_nothing_explains_are_reported_not_named() -> None:
    bundle = replace(simulate(World(seed=4, serial=False)), incident_start_s=None)
    random = np.random.default_rng(1)
    hidden = np.where(random.random(len(bundle.requests)) < 0.3, random.exponential(0.1, len(bundle.requests)), 0.0)
    verdict = diagnose(_with_stage(bundle, "wire_s", hidden)).verdict
    assert (verdict.status, verdict.cause) == ("abstain", None)
    assert "wire_s" in verdict.reason
    assert verdict.collect_next


def test_a_ratio_varies_beyond_chance_or_not() -> None:
    random = np.random.default_rng(0)
    window = np.repeat(np.arange(20), 100)
    whole = random.lognormal(7, 0.5, 2000)
    steady = whole * random.beta(4, 6, 2000)
    moving = np.where(window < 5, 0.7 * steady, steady)
    assert not spread(steady, whole, window).significant
    found = spread(moving, whole, window)
    assert found.significant
    assert 0.03 < found.beyond < 0.08


def test_a_steady_poisson_rate_has_no_waves() -> None:
    bundle = simulate(World(seed=5, requests=3000, seconds=600, serial=False))
    assert arrival_waves(standing_frame(bundle, stage_matrix(bundle.requests))).ratio < 1.04


def test_a_few_retransmissions_on_a_busy_host_take_no_blame_for_its_stalls() -> None:
    """Stalled processors delay acknowledgements, TCP sends again: the counter moves with the stalls that moved it."""
    for seed in range(6):
        bundle = replace(simulate(World(seed=seed, serial=False)), incident_start_s=None)
        random = np.random.default_rng(seed)
        count = len(bundle.requests)
        second = (bundle.requests.numbers["arrival_s"] - START_S).astype(int)
        stalled = random.random(61) < 0.4
        size = np.where(stalled[np.clip(second, 0, 60)], random.exponential(0.02, count), 0.0)
        for stage, part in (("wire_s", 1.0), ("post_s", 0.8), ("pull_wait_s", 0.8)):
            bundle = _with_stage(bundle, stage, part * size)
        again = np.concatenate([[0.0], np.cumsum(np.where(stalled[:60], random.poisson(5.0, 60), 0.0))])
        lost = CounterSeries(
            node="decode", device=None, metric="nic.retransmits", time_s=START_S + np.arange(61.0), value=again
        )
        bundle = replace(
            bundle,
            series=(*bundle.series, lost),
            metrics={**bundle.metrics, "nic.retransmits": MetricInfo(kind="counter", unit="")},
        )
        assert diagnose(bundle).verdict.cause is None


def test_requests_whose_transfer_is_not_known_by_itself_do_not_make_it_free_of_cost() -> None:
    bundle = simulate(World(seed=2, serial=False))
    numbers = dict(bundle.requests.numbers)
    wait, whole = (
        np.sum([numbers.pop(name) for name in PARTS[one] if name in numbers], axis=0)
        for one in ("pre_transfer_s", "transfer_s")
    )
    coarse = np.arange(len(wait)) % 3 == 0
    known = {**numbers, "pre_transfer_s": wait, "transfer_s": whole}
    mixed = {
        **numbers,
        "pre_transfer_s": np.where(coarse, np.nan, wait),
        "transfer_s": np.where(coarse, np.nan, whole),
        "kv_wait_s": np.where(coarse, wait + whole, np.nan),
    }
    expected = []
    for columns in (known, mixed):
        one = replace(bundle, requests=replace(bundle.requests, numbers=columns), incident_start_s=None)
        frame = standing_frame(one, stage_matrix(one.requests))
        expected.append((frame.seconds_per_byte(), expected_stages(frame, hit_waves(frame)).sum(axis=1).mean()))
    assert expected[1] == pytest.approx(expected[0], rel=0.1)
