"""Whose the seconds of a longer queue are: worked examples of an M/G/1 queue."""

from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from kvdiag.attribution.causes.base import Load
from kvdiag.attribution.columns import Columns
from kvdiag.attribution.queue_share import drift_parts, load_parts


def _columns(*factors: tuple[float, bool], slowdown: float = 0.0) -> Columns:
    """Return columns of mechanisms with these load ratios; True marks what users asked for."""
    found = [
        SimpleNamespace(load=Load(ratio=ratio, error=0.001), cause=SimpleNamespace(workload=workload))
        for ratio, workload in factors
    ]
    return cast("Columns", SimpleNamespace(mechanisms=found, slowdown=slowdown))


def _wait(utilisation: float) -> float:
    return utilisation / (1 - utilisation)


def test_a_fault_has_what_its_repair_would_save() -> None:
    # Utilisation 0.5, arrivals x 1.3 and misses x 1.2: 0.78; without the misses it would be 0.65.
    before, after = np.array([_wait(0.5)]), np.array([_wait(0.78)])
    parts = load_parts(_columns((1.3, True), (1.2, False)), before, after)
    saved = (_wait(0.78) - _wait(0.65)) / (_wait(0.78) - _wait(0.5))
    assert parts[0] == pytest.approx([1 - saved, saved], abs=1e-6)
    assert saved > 0.6


def test_drift_is_split_by_logarithms_and_faults_alone_have_all() -> None:
    before, after = np.array([_wait(0.4)]), np.array([_wait(0.4 * 1.1 * 1.21)])
    assert load_parts(_columns((1.1, True), (1.21, True)), before, after)[0] == pytest.approx([1 / 3, 2 / 3])
    assert load_parts(_columns((1.0, True), (1.21, False)), before, after)[0] == pytest.approx([0, 1])


def test_slow_compute_keeps_its_part_unexplained() -> None:
    parts = load_parts(_columns((1.2, False), slowdown=float(np.log(1.2))), np.array([1.0]), np.array([3.0]))
    assert parts.sum() == pytest.approx(0.5)


@pytest.mark.parametrize(("before", "after"), [(0.0, 0.0), (1.0, 1.0), (1.0, 1.05), (1.0, 0.5), (0.0, 1.0), (1.0, 1e9)])
def test_any_two_means_give_shares_between_nought_and_one(before: float, after: float) -> None:
    parts = load_parts(_columns((1.3, True), (1.2, False)), np.array([before]), np.array([after]))
    assert np.isfinite(parts).all()
    assert (parts >= 0).all()
    assert parts.sum() == pytest.approx(1)


def test_no_growth_of_work_explains_no_queue() -> None:
    assert not load_parts(_columns((0.8, True), (1.05, False)), np.array([1.0]), np.array([2.0])).any()
    assert not drift_parts(_columns((0.8, True), (1.0, False))).any()
