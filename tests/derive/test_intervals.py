import random

import pytest

from kvdiag.derive.intervals import COVERAGE, median, median_interval, metric


def test_fewer_than_five_samples_have_no_interval() -> None:
    assert median_interval([1, 2, 3, 4]) is None
    assert metric("m", "seconds", "lower", [3.0, 1.0]).low is None


@pytest.mark.parametrize(
    ("count", "rank"),
    # Conover, table A3 / binomial tails: the largest k with 1 - 2·P(B(n, 1/2) < k) >= 0.93.
    [(5, 1), (8, 1), (9, 2), (12, 3), (20, 6)],
)
def test_the_interval_is_the_sign_tests(count: int, rank: int) -> None:
    samples = [float(i) for i in range(1, count + 1)]
    assert median_interval(samples[::-1]) == (rank, count + 1 - rank)


def test_the_interval_covers_the_median_as_often_as_promised() -> None:
    chance = random.Random(7)
    hits = 0
    for _ in range(2000):
        low, high = median_interval([chance.expovariate(1.0) for _ in range(11)]) or (9.0, 0.0)
        hits += low <= 0.6931 <= high
    assert hits / 2000 >= COVERAGE - 0.02


def test_the_median_of_an_even_number_lies_between_the_middle_two() -> None:
    assert median([4, 1, 3, 2]) == 2.5
