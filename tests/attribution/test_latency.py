"""A longer way spares no transfer; what spares some, and what slows the hosts as well, is another matter."""

import pytest

from kvdiag.attribution.frame import Frame, build_frame
from kvdiag.attribution.latency import Floor, transfer_floors
from kvdiag.derive.stages import stage_matrix
from kvdiag.model.missing import Missing
from tests.attribution.synthetic import World, simulate


def frame(world: World) -> Frame:
    bundle = simulate(world)
    assert bundle.incident_start_s is not None
    return build_frame(bundle, stage_matrix(bundle.requests), bundle.incident_start_s)


@pytest.mark.parametrize(("fault", "longer"), [("none", False), ("delay", True), ("pause", False), ("layout", False)])
def test_only_a_delay_of_all_transfers_raises_the_floor_evenly(fault: str, longer: bool) -> None:
    floors = transfer_floors(frame(World(seed=3, fault=fault)))
    assert not isinstance(floors, Missing)
    assert {(floor.role, floor.node) for floor in floors} == {("decode", "decode"), ("prefill", "prefill")}
    assert all(floor.is_longer(host=1.0) == longer for floor in floors)


def test_a_host_that_slowed_down_as_much_is_no_longer_way() -> None:
    floor = Floor("decode", "d", before=0.001, after=0.004, middle=0.003)
    assert floor.is_longer(host=1.0)
    assert floor.is_longer(host=3.0)
    assert not floor.is_longer(host=3.1)
    assert not Floor("decode", "d", before=0.001, after=0.004, middle=0.0101).is_longer(host=1.0)


def test_without_sizes_or_enough_transfers_nothing_is_seen() -> None:
    assert isinstance(transfer_floors(frame(World(seed=1, requests=40))), Missing)
    unsized = frame(World(seed=1))
    unsized.bundle.requests.numbers["bytes"][:] = 0
    assert isinstance(transfer_floors(unsized), Missing)
