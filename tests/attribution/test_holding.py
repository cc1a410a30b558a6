"""Waiting for KV space because transfers hold it longer, told apart from too little space."""

import numpy as np
import pytest

from kvdiag.attribution import diagnose
from kvdiag.attribution.frame import Frame, build_frame
from kvdiag.attribution.holding import LONGER, longer_transfers
from kvdiag.derive.stages import stage_matrix
from tests.attribution.cluster import Cluster
from tests.attribution.recording import Recorder, record

COARSE = Recorder(granularity="coarse", decoys=0)
COLLAPSED = Cluster(seed=4, faults={"fabric.link_degraded": 3.0, "fabric.tcp_fallback": 1.3}, rate=12, seconds=200)


def _frame(world: Cluster, recorder: Recorder) -> Frame:
    bundle, _ = record(world, recorder)
    assert bundle.incident_start_s is not None
    return build_frame(bundle, stage_matrix(bundle.requests), bundle.incident_start_s)


def test_transfers_that_take_longer_are_told_by_littles_law() -> None:
    frame = _frame(COLLAPSED, Recorder(decoys=0))
    lines = longer_transfers(frame)
    sick = frame.node_names("decode")[COLLAPSED.seed % COLLAPSED.decodes]
    assert lines[0].name == f"seconds of a transfer @ {sick}"
    told = [float(part) for part in lines[0].value.split(" s:")[0].split(" → ")]
    labels = frame.nodes("decode")
    parts = [frame.stages.stage(name) for name in ("setup_s", "register_s", "handle_s", "post_s", "wire_s")]
    pulling = np.sum([part for part in parts if part is not None], axis=0)
    here = labels.codes == labels.names.index(sick)
    for seconds, rows in zip(told, (here & ~frame.incident, here & frame.incident), strict=True):
        assert seconds == pytest.approx(float(np.mean(pulling[rows])), rel=0.6)


@pytest.mark.parametrize("missing", [(), ("engine.pulls_in_flight",)])
def test_what_slows_transfers_goes_before_the_wait_that_follows(missing: tuple[str, ...]) -> None:
    bundle, truth = record(COLLAPSED, Recorder(granularity="coarse", decoys=0, missing=missing))
    assert truth.impact > LONGER
    diagnosis = diagnose(bundle)
    assert diagnosis.verdict.cause in truth.causes
    assert "schedule.decode_admission" in [cause.id for cause in diagnosis.causes[:3]]


@pytest.mark.parametrize("seed", range(2))
def test_too_little_space_alone_makes_no_transfer_longer(seed: int) -> None:
    world = Cluster(seed=seed, faults={"schedule.decode_admission": 0.5}, rate=10, seconds=200)
    assert longer_transfers(_frame(world, COARSE)) == ()
    assert diagnose(record(world, COARSE)[0]).verdict.cause == "schedule.decode_admission"
