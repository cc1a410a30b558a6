"""By which factors the offered work changed, from a sample of rows and counters that count all."""

from dataclasses import replace

import numpy as np
import pytest

from kvdiag.attribution.causes.base import Load
from kvdiag.attribution.frame import build_frame
from kvdiag.attribution.loads import Factors, factors
from kvdiag.derive.stages import stage_matrix
from kvdiag.model.bundle import Bundle
from tests.attribution.cluster import Cluster
from tests.attribution.recording import Recorder, record

WORLD = Cluster(seed=5, faults={"workload.prompt_length": 0.35}, rate=15)


def _factors(bundle: Bundle) -> Factors:
    assert bundle.incident_start_s is not None
    return factors(build_frame(bundle, stage_matrix(bundle.requests), bundle.incident_start_s))


@pytest.fixture(scope="module")
def truth() -> float:
    length = _factors(record(WORLD)[0]).length
    assert isinstance(length, Load)
    return length.ratio


def test_counters_sharpen_what_a_sample_shows(truth: float) -> None:
    bundle, _ = record(WORLD, Recorder(sampling=0.03))
    with_counters, rows_alone = _factors(bundle), _factors(replace(bundle, series=()))
    assert isinstance(with_counters.length, Load)
    assert isinstance(rows_alone.length, Load)
    assert with_counters.length.error < 0.5 * rows_alone.length.error
    assert abs(np.log(with_counters.length.ratio / truth)) < 0.05
    assert abs(np.log(with_counters.arrivals.ratio)) < 0.1


def test_a_counter_that_counts_something_else_too_is_left_out(truth: float) -> None:
    bundle, _ = record(WORLD, Recorder(sampling=0.03))
    start = bundle.incident_start_s
    assert start is not None
    series = tuple(
        replace(one, value=one.value + 5e10 * np.maximum(one.time_s - start, 0.0))
        if one.metric == "nic.tx_bytes"
        else one
        for one in bundle.series
    )
    length = _factors(replace(bundle, series=series)).length
    assert isinstance(length, Load)
    assert abs(np.log(length.ratio / truth)) < 0.15


def test_what_is_not_recorded_is_missing() -> None:
    bundle, _ = record(WORLD)
    numbers = {k: v for k, v in bundle.requests.numbers.items() if k not in ("prompt_tokens", "uncached_tokens")}
    found = _factors(replace(bundle, requests=replace(bundle.requests, numbers=numbers)))
    assert not isinstance(found.length, Load)
    assert not isinstance(found.miss, Load)
