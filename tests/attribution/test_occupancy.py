from dataclasses import replace

import numpy as np

from kvdiag.attribution import diagnose
from kvdiag.attribution.frame import Frame, build_frame
from kvdiag.attribution.occupancy import find_occupancies, held_seconds, pushed_wait
from kvdiag.derive.stages import stage_matrix
from tests.attribution.synthetic import START_S, World, simulate


def _frame(world: World) -> Frame:
    bundle = simulate(world)
    assert bundle.incident_start_s is not None
    return build_frame(bundle, stage_matrix(bundle.requests), bundle.incident_start_s)


def test_a_serial_worker_is_recognised_and_how_long_it_is_held() -> None:
    (found,) = find_occupancies(_frame(World(seed=1, requests=300)))
    assert (found.waiting, found.side) == ("queue_s", "prefill")
    assert found.until in ("first_step_s", "unaccounted")
    assert found.misfit < 1e-4  # wall-clock seconds hold microseconds


def test_a_transfer_slot_is_recognised_behind_the_prefill_worker() -> None:
    pull, queue = find_occupancies(_frame(World(seed=1, requests=300, serial=False, slot=True, fault="layout")))
    assert (pull.waiting, pull.until) == ("pull_wait_s", "wire_s")
    assert (queue.waiting, queue.until) == ("queue_s", "prefill_s")


def test_waits_of_another_kind_are_not_forced_into_the_model() -> None:
    frame = _frame(World(seed=1, requests=300, serial=False))
    queue = frame.stages.stage("queue_s")
    assert queue is not None
    queue += np.random.default_rng(0).exponential(0.05, frame.rows)
    assert find_occupancies(frame) == ()


def test_waits_are_not_recomputed_from_a_sample_of_the_requests() -> None:
    bundle = replace(simulate(World(seed=1, requests=300)), sampling=0.5)
    frame = build_frame(bundle, stage_matrix(bundle.requests), START_S + 30)
    assert find_occupancies(frame) == ()


def test_the_queue_of_a_longer_service_is_what_shorter_service_would_not_have_waited() -> None:
    frame = _frame(World(seed=1, requests=300, fault="registration"))
    (found,) = find_occupancies(frame)
    register = frame.stages.stage("register_s")
    queue = frame.stages.stage("queue_s")
    assert register is not None
    assert queue is not None
    nothing = pushed_wait(frame, found, np.zeros(frame.rows))
    everything = pushed_wait(frame, found, held_seconds(frame, found.waiting, found.until))
    some = pushed_wait(frame, found, register)
    assert nothing.max() == 0
    assert np.allclose(everything[frame.incident], queue[frame.incident], atol=1e-6)
    assert 0 < some.sum() < everything.sum()
    assert some[~frame.incident].max() == 0


def test_a_slot_that_is_given_back_late_is_still_recognised() -> None:
    bundle = simulate(World(seed=1, requests=300, serial=False, slot=True, turnaround_s=0.006, fault="registration"))
    frame = build_frame(bundle, stage_matrix(bundle.requests), START_S + 30)
    found = {one.waiting: one for one in find_occupancies(frame)}
    assert found["pull_wait_s"].until == "wire_s"
    assert found["pull_wait_s"].misfit < 0.1


def test_a_slot_that_is_free_before_its_end_is_seen_is_still_recognised() -> None:
    bundle = simulate(World(seed=2, requests=300, serial=False, slot=True, turnaround_s=-0.002, fault="registration"))
    frame = build_frame(bundle, stage_matrix(bundle.requests), START_S + 30)
    found = {one.waiting: one for one in find_occupancies(frame)}
    assert found["pull_wait_s"].until == "wire_s"
    assert found["pull_wait_s"].misfit < 0.15


def test_a_slot_is_recognised_although_short_waits_are_mostly_the_schedulers_noise() -> None:
    bundle = simulate(World(seed=1, requests=400, serial=False, slot=True, fault="layout"))
    numbers = dict(bundle.requests.numbers)
    noise = np.random.default_rng(0).exponential(0.4 * numbers["pull_wait_s"].mean(), len(bundle.requests))
    for name in ("pull_wait_s", "ttft_s"):
        numbers[name] = numbers[name] + noise
    noisy = replace(bundle, requests=replace(bundle.requests, numbers=numbers))
    frame = build_frame(noisy, stage_matrix(noisy.requests), START_S + 30)
    found = {one.waiting: one for one in find_occupancies(frame)}
    assert found["pull_wait_s"].misfit > 0.25
    assert found["pull_wait_s"].determined > 0.7
    layout = diagnose(noisy).causes[0]
    assert layout.id == "layout.fragmented"
    assert "pull_wait_s" in layout.evidence[0].value
