"""Whole diagnoses of simulated worlds: what is named, what is not, and that the books add up."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from kvdiag.attribution import diagnose
from kvdiag.attribution.causes.base import discover
from kvdiag.errors import UsageError
from kvdiag.model.bundle import Bundle
from tests.attribution.synthetic import START_S, World, simulate

FAULTS = {
    "delay": "fabric.link_degraded",
    "loss": "fabric.loss",
    "registration": "registration.on_path",
    "layout": "layout.fragmented",
    "link": "fabric.link_degraded",
}
TAXONOMY = {
    "fabric.congestion",
    "fabric.loss",
    "fabric.link_degraded",
    "fabric.tcp_fallback",
    "fabric.incast",
    "registration.on_path",
    "registration.cache_miss",
    "connection.setup",
    "connection.exhaustion",
    "layout.fragmented",
    "schedule.host_contention",
    "schedule.prefill_queue",
    "schedule.serial_pull",
    "schedule.decode_admission",
    "workload.prompt_length",
    "workload.prefill_batch",
    "cache.prefix_miss",
    "cache.multi_turn_recompute",
}


def _named(worlds: list[World], *, announced: bool = True) -> Counter[str | None]:
    named: Counter[str | None] = Counter()
    for world in worlds:
        bundle = simulate(world)
        if not announced:
            bundle = replace(bundle, incident_start_s=None)
        named[diagnose(bundle).verdict.cause] += 1
    return named


def _thinned(bundle: Bundle, keep: int) -> Bundle:
    rows = np.linspace(0, len(bundle.requests) - 1, keep).astype(int)
    requests = replace(
        bundle.requests,
        ids=[bundle.requests.ids[row] for row in rows],
        numbers={name: values[rows] for name, values in bundle.requests.numbers.items()},
        labels={name: replace(label, codes=label.codes[rows]) for name, label in bundle.requests.labels.items()},
    )
    return replace(bundle, requests=requests)


def test_every_cause_of_the_taxonomy_has_its_file() -> None:
    assert {cause.id for cause in discover()} == TAXONOMY
    assert all(cause.action for cause in discover())


def test_no_fault_names_nothing_in_two_hundred_worlds() -> None:
    calm = [World(seed=seed) for seed in range(100)]
    noisy = [World(seed=seed, noise=2.0) for seed in range(100, 150)]
    asynchronous = [World(seed=seed, serial=False) for seed in range(150, 200)]
    assert _named(calm + noisy + asynchronous) == {None: 200}


def test_no_fault_names_nothing_where_the_change_had_to_be_searched() -> None:
    assert _named([World(seed=seed) for seed in range(200, 240)], announced=False) == {None: 40}


def test_drifting_load_and_prompts_are_never_blamed_on_the_machines() -> None:
    worlds = [
        World(seed=seed, arrivals_drift=arrivals, prompt_drift=prompts)
        for seed in range(20)
        for arrivals, prompts in ((1.3, 1.0), (1.0, 1.3), (1.2, 0.8))
    ]
    assert set(_named(worlds)) <= {None, "workload.prompt_length", "schedule.prefill_queue"}


def test_a_neighbour_that_slows_the_whole_machine_is_no_cause_of_the_list() -> None:
    assert set(_named([World(seed=seed, neighbour=slow) for seed in range(15) for slow in (1.5, 2.5)])) == {None}


def test_three_times_as_many_requests_are_what_is_named_though_three_times_as_much_is_sent_again() -> None:
    worlds = [World(seed=seed, arrivals_drift=3.0, requests=300, serial=False, slot=True) for seed in range(10)]
    named = _named(worlds, announced=False)
    assert named.keys() <= {"schedule.prefill_queue", None}
    assert named["schedule.prefill_queue"] >= 9


def test_a_longer_way_is_named_though_transfers_pile_up_behind_it() -> None:
    worlds = [World(seed=seed, fault="delay", size=8.0, serial=False, slot=True) for seed in range(5)]
    assert _named(worlds) == {"fabric.link_degraded": 5}


def test_a_peer_that_pauses_is_no_cause_of_the_list_and_no_quiet_either() -> None:
    for seed in range(10):
        verdict = diagnose(simulate(World(seed=seed, fault="pause"))).verdict
        assert (verdict.status, verdict.cause) == ("abstain", None)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_named_every_time(fault: str) -> None:
    assert _named([World(seed=seed, fault=fault) for seed in range(20)]) == {FAULTS[fault]: 20}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_named_when_its_start_has_to_be_searched(fault: str) -> None:
    assert _named([World(seed=seed, fault=fault) for seed in range(10)], announced=False) == {FAULTS[fault]: 10}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_named_behind_an_asynchronous_queue_and_on_a_noisier_machine(fault: str) -> None:
    worlds = [World(seed=seed, fault=fault, serial=False) for seed in range(8)]
    worlds += [World(seed=seed, fault=fault, noise=1.5) for seed in range(8)]
    assert _named(worlds)[FAULTS[fault]] >= 15


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_behind_a_single_transfer_slot_is_named(fault: str) -> None:
    worlds = [World(seed=seed, fault=fault, serial=False, slot=True, registered_bytes=True) for seed in range(10)]
    assert _named(worlds) == {FAULTS[fault]: 10}


def test_no_fault_behind_a_single_transfer_slot_names_nothing() -> None:
    assert _named([World(seed=seed, serial=False, slot=True) for seed in range(40)]) == {None: 40}


def test_a_small_fault_is_never_taken_for_another_one() -> None:
    for fault, cause in FAULTS.items():
        assert set(_named([World(seed=seed, fault=fault, size=0.3) for seed in range(8)])) <= {None, cause}


def test_the_books_add_up() -> None:
    diagnosis = diagnose(simulate(World(seed=5, fault="layout")))
    assert diagnosis.baseline is not None
    assert diagnosis.incident is not None
    change = diagnosis.incident.mean_s - diagnosis.baseline.mean_s
    assert abs(sum(stage.share_of_variance for stage in diagnosis.stages) - 1) < 1e-9
    assert abs(sum(stage.excess_mean_s or 0.0 for stage in diagnosis.stages) - change) < 1e-9
    assert abs(sum(cause.share_of_variance for cause in diagnosis.causes) - 1) < 1e-6
    assert abs(sum(cause.excess_mean_s for cause in diagnosis.causes) - change) < 1e-6
    assert diagnosis.causes[-1].id == "unexplained"


def test_queue_seconds_follow_the_mechanism_that_lengthened_the_service() -> None:
    bundle = simulate(World(seed=2, fault="layout"))
    diagnosis = diagnose(bundle)
    cause = diagnosis.causes[0]
    stages = {stage.stage: stage.excess_mean_s or 0.0 for stage in diagnosis.stages}
    assert cause.id == "layout.fragmented"
    assert stages["queue_s"] > 0.02
    assert cause.excess_mean_s > 0.7 * (stages["queue_s"] + stages["post_s"] + stages["wire_s"])


def test_a_named_cause_shows_its_numbers_and_where() -> None:
    diagnosis = diagnose(simulate(World(seed=4, fault="registration")))
    cause = diagnosis.causes[0]
    assert diagnosis.verdict.severity == "critical"
    assert cause.nodes == ("decode",)
    assert cause.excess_mean_low_s <= cause.excess_mean_s <= cause.excess_mean_high_s
    assert any("reg.mr_registered" in line.name and "→" in line.value for line in cause.evidence)
    assert all(line.source for line in cause.evidence)
    assert "register_s" in cause.evidence[0].value


def test_the_same_seed_gives_the_same_diagnosis() -> None:
    bundle = simulate(World(seed=9, fault="link"))
    assert diagnose(bundle, seed=3) == diagnose(bundle, seed=3)
    assert diagnose(bundle, seed=3).stages != diagnose(bundle, seed=4).stages


def test_too_few_requests_abstain_and_say_what_is_needed() -> None:
    diagnosis = diagnose(_thinned(simulate(World(seed=4, fault="registration")), 100))
    assert diagnosis.verdict.status == "abstain"
    assert diagnosis.verdict.cause is None
    assert "120" in diagnosis.verdict.reason
    assert diagnosis.verdict.collect_next
    assert abs(sum(stage.share_of_variance for stage in diagnosis.stages) - 1) < 1e-9


def test_an_unseen_rise_abstains() -> None:
    bundle = simulate(World(seed=4))
    late = bundle.requests.numbers["arrival_s"] >= START_S + 30
    numbers = dict(bundle.requests.numbers)
    numbers["first_step_s"] = numbers["first_step_s"] + np.where(late, 0.05, 0.0)
    numbers["ttft_s"] = numbers["ttft_s"] + np.where(late, 0.05, 0.0)
    diagnosis = diagnose(replace(bundle, requests=replace(bundle.requests, numbers=numbers)))
    assert diagnosis.verdict.status == "abstain"
    assert diagnosis.causes[-1].excess_mean_s > 0.04
    assert diagnosis.verdict.collect_next


def test_a_start_outside_the_recorded_period_is_refused() -> None:
    with pytest.raises(UsageError, match="outside the recorded arrivals"):
        diagnose(simulate(World(seed=0)), incident_start_s=START_S - 5)


def test_identical_requests_are_no_change() -> None:
    bundle = simulate(World(seed=0))
    numbers = {name: values * 0 + 0.1 for name, values in bundle.requests.numbers.items()}
    numbers["arrival_s"] = bundle.requests.numbers["arrival_s"]
    numbers["ttft_s"] = numbers["ttft_s"] * 6
    diagnosis = diagnose(replace(bundle, requests=replace(bundle.requests, numbers=numbers)))
    assert diagnosis.verdict.status == "no_change"
    assert all(stage.share_of_variance == 0 for stage in diagnosis.stages)
