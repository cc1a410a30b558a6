import numpy as np

from kvdiag.attribution.frame import Frame, build_frame
from kvdiag.attribution.occupancy import find_occupancy, held_seconds, pushed_queue
from kvdiag.derive.stages import stage_matrix
from tests.attribution.synthetic import World, simulate


def _frame(world: World) -> Frame:
    bundle = simulate(world)
    assert bundle.incident_start_s is not None
    return build_frame(bundle, stage_matrix(bundle.requests), bundle.incident_start_s)


def test_a_serial_worker_is_recognised_and_how_long_it_is_held() -> None:
    found = find_occupancy(_frame(World(seed=1, requests=300)))
    assert found is not None
    assert found.until in ("first_step_s", "unaccounted")
    assert found.misfit < 1e-4  # wall-clock seconds hold microseconds


def test_a_queue_of_another_kind_is_not_forced_into_the_model() -> None:
    assert find_occupancy(_frame(World(seed=1, requests=300, serial=False))) is None


def test_the_queue_of_a_longer_service_is_what_shorter_service_would_not_have_waited() -> None:
    frame = _frame(World(seed=1, requests=300, fault="registration"))
    found = find_occupancy(frame)
    assert found is not None
    register = frame.stages.stage("register_s")
    queue = frame.stages.stage("queue_s")
    assert register is not None
    assert queue is not None
    nothing = pushed_queue(frame, found, np.zeros(frame.rows))
    everything = pushed_queue(frame, found, held_seconds(frame, found.until))
    some = pushed_queue(frame, found, register)
    assert nothing.max() == 0
    assert np.allclose(everything[frame.incident], queue[frame.incident], atol=1e-6)
    assert 0 < some.sum() < everything.sum()
    assert some[~frame.incident].max() == 0
