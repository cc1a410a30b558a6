import numpy as np
from numpy.typing import NDArray

from kvdiag.attribution.blocks import LEAST_BLOCK_S, LEAST_BLOCKS, moments, politis_white


def _autoregressive(coefficient: float, seed: int, length: int = 400) -> NDArray[np.float64]:
    random = np.random.default_rng(seed)
    series = np.zeros(length)
    for index in range(1, length):
        series[index] = coefficient * series[index - 1] + random.normal()
    return series


def test_block_length_grows_with_correlation() -> None:
    lengths = [
        float(np.median([politis_white(_autoregressive(coefficient, seed)) for seed in range(10)]))
        for coefficient in (0.0, 0.5, 0.9)
    ]
    assert lengths[0] < 4 < lengths[1] < lengths[2]


def test_a_constant_series_needs_no_blocks() -> None:
    assert politis_white(np.ones(100)) == 1.0


def test_block_length_is_bounded_by_floor_and_number_of_blocks() -> None:
    time_s = np.linspace(0, 30, 300, endpoint=False)
    columns = np.ones((300, 1))
    quick = moments(columns, time_s, 0.0, 30.0, np.random.default_rng(0).normal(size=300))
    slow = moments(columns, time_s, 0.0, 30.0, _autoregressive(0.99, 0, 300))
    assert quick.block_s >= LEAST_BLOCK_S
    assert 2 * quick.block_s < slow.block_s <= 30 / LEAST_BLOCKS + 1e-9


def test_replicates_keep_the_length_of_the_period_and_follow_the_seed() -> None:
    time_s = np.linspace(0, 60, 600, endpoint=False)
    values = np.random.default_rng(1).normal(size=600)
    found = moments(np.column_stack([np.ones(600), values]), time_s, 0.0, 60.0, values)
    drawn = found.resample(50, np.random.default_rng(7))
    assert np.allclose(drawn[:, 0, 0], found.total[0, 0], rtol=0.03)
    assert np.array_equal(drawn, found.resample(50, np.random.default_rng(7)))
    assert not np.array_equal(drawn, found.resample(50, np.random.default_rng(8)))


def test_intervals_cover_the_mean_of_a_correlated_series() -> None:
    covered = 0
    for seed in range(60):
        series = _autoregressive(0.6, seed, 600)
        time_s = np.linspace(0, 60, 600, endpoint=False)
        found = moments(np.column_stack([np.ones(600), series]), time_s, 0.0, 60.0, series)
        drawn = found.resample(200, np.random.default_rng(seed))
        low, high = np.quantile(drawn[:, 0, 1] / drawn[:, 0, 0], [0.05, 0.95])
        covered += low <= 0 <= high
    assert covered >= 45  # nominal 54 of 60; block bootstraps are a little narrow
