"""The exact split: it adds up, whatever the data."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from numpy.typing import NDArray

from kvdiag.attribution.variance import split_variance

_SECONDS = arrays(
    np.float64,
    array_shapes(min_dims=2, max_dims=2, min_side=2, max_side=30),
    elements=st.floats(-1.0, 10.0, allow_nan=False, width=32),
)


@given(_SECONDS, st.integers(0, 2**30 - 1))
def test_shares_add_up_and_parts_are_the_variance(seconds: NDArray[np.float64], pattern: int) -> None:
    incident = np.array([bool(pattern >> (row % 30) & 1) for row in range(len(seconds))])
    split = split_variance(seconds, incident)
    total = seconds.sum(axis=1)
    assert np.isclose(split.variance, total.var(), rtol=1e-9, atol=1e-12)
    for column in range(seconds.shape[1]):
        covariance = np.mean((seconds[:, column] - seconds[:, column].mean()) * (total - total.mean()))
        assert np.isclose(split.within[column] + split.between[column], covariance, rtol=1e-9, atol=1e-11)
    assert split.share.sum() == 0 or abs(split.share.sum() - 1) < 1e-9


def test_a_step_in_one_stage_is_between_periods() -> None:
    incident = np.arange(100) >= 50
    steady = np.tile([1.0, 3.0], 50)
    split = split_variance(np.column_stack([steady, np.where(incident, 4.0, 0.0)]), incident)
    assert split.within.tolist() == [1.0, 0.0]
    assert split.between.tolist() == [0.0, 4.0]
    assert split.share.tolist() == [0.2, 0.8]


def test_a_stage_that_shrinks_while_the_total_grows_has_a_negative_share() -> None:
    incident = np.arange(10) >= 5
    split = split_variance(np.column_stack([np.where(incident, 1.0, 2.0), np.where(incident, 9.0, 0.0)]), incident)
    assert split.share[0] < 0
    assert split.share[1] > 1


def test_nothing_varies() -> None:
    split = split_variance(np.ones((5, 2)), np.array([False, False, True, True, True]))
    assert split.variance == 0
    assert split.share.tolist() == [0.0, 0.0]
