"""Where a cause sits: nodes, pairs of nodes, single devices of a node."""

from dataclasses import replace

import numpy as np
import pytest

from kvdiag.attribution import diagnose
from kvdiag.attribution.frame import Frame, build_frame
from kvdiag.attribution.where import devices_of, nodes_of, pairs_of
from kvdiag.derive.stages import stage_matrix
from kvdiag.model.bundle import Bundle
from tests.attribution.cluster import Cluster
from tests.attribution.recording import Recorder, record

WORLD = Cluster(seed=11, faults={"fabric.loss": 4.0}, rate=10)


@pytest.fixture(scope="module")
def bundle() -> Bundle:
    return record(WORLD, Recorder(clocks_s=0.0, decoys=0))[0]


@pytest.fixture(scope="module")
def frame(bundle: Bundle) -> Frame:
    assert bundle.incident_start_s is not None
    return build_frame(bundle, stage_matrix(bundle.requests), bundle.incident_start_s)


def _seconds(frame: Frame, prefill: int | None, decode: int | None) -> np.ndarray:
    there = frame.incident.copy()
    if prefill is not None:
        there &= frame.nodes("prefill").codes == prefill
    if decode is not None:
        there &= frame.nodes("decode").codes == decode
    return np.where(there, 0.1, 0.001) * np.random.default_rng(0).lognormal(0, 0.3, frame.rows)


def test_a_sick_node_is_no_sick_pair(frame: Frame) -> None:
    assert nodes_of(frame, _seconds(frame, None, 1), None) == ("d1",)
    assert pairs_of(frame, _seconds(frame, None, 1)) == ()
    assert pairs_of(frame, _seconds(frame, 2, None)) == ()


def test_a_sick_path_is_named(frame: Frame) -> None:
    assert pairs_of(frame, _seconds(frame, 2, 1)) == ("p2 → d1",)
    both = _seconds(frame, 2, 1) + _seconds(frame, 0, 0)
    assert set(pairs_of(frame, both)) == {"p2 → d1", "p0 → d0"}


def test_nothing_stands_out_where_all_are_alike(frame: Frame) -> None:
    assert pairs_of(frame, _seconds(frame, None, None)) == ()


def _split(bundle: Bundle, share: float) -> Bundle:
    """Give every node two devices; the first has `share` of what the counters grew by."""
    series = tuple(
        replace(one, device=device, value=one.value[0] + (one.value - one.value[0]) * part)
        for one in bundle.series
        for device, part in (("mlx5_0", share), ("mlx5_1", 1 - share))
    )
    return replace(bundle, series=series)


def test_the_device_whose_counter_rose_is_named(bundle: Bundle) -> None:
    diagnosis = diagnose(_split(bundle, 0.05))
    cause = diagnosis.causes[0]
    assert (cause.id, cause.nodes) == ("fabric.loss", ("d2",))
    assert cause.devices == ("d2 mlx5_1",)
    assert diagnose(_split(bundle, 0.5)).causes[0].devices == ()
    assert diagnose(bundle).causes[0].devices == ()


def test_devices_of_a_node_that_has_none(frame: Frame) -> None:
    assert devices_of(frame, "nic.retransmits", "d2") == ()
    assert devices_of(frame, "no.such", "d2") == ()
