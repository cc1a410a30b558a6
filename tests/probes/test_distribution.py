import pytest

from kvdiag_probes.distribution import distribution


def test_percentiles_are_observed_samples() -> None:
    found = distribution([float(i) for i in range(1000, 0, -1)])
    assert (found.count, found.minimum, found.maximum) == (1000, 1.0, 1000.0)
    assert (found.p50, found.p90, found.p99, found.p999) == (500.0, 900.0, 990.0, 999.0)
    assert found.mean == pytest.approx(500.5)


def test_one_sample_is_every_percentile() -> None:
    found = distribution([0.25])
    assert {found.minimum, found.p50, found.p90, found.p99, found.p999, found.maximum, found.mean} == {0.25}


def test_one_outlier_among_a_hundred_is_the_maximum_but_not_the_p99() -> None:
    found = distribution([1.0] * 99 + [50.0])
    assert (found.p99, found.p999, found.maximum) == (1.0, 50.0, 50.0)
