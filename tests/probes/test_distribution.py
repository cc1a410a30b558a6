import numpy as np
import pytest

from kvdiag_probes.distribution import Samples, distribution


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


def test_many_samples_are_counted_within_a_part_in_four_thousand() -> None:
    rng = np.random.default_rng(1)
    values = rng.lognormal(-11, 1.5, 1_300_000)
    samples = Samples()
    for part in np.split(values, 13):
        samples.add(part.tolist())
    exact, counted = distribution(values.tolist()), samples.distribution()
    assert not samples.exact and len(samples.raw) == 0
    assert (counted.count, counted.minimum, counted.maximum) == (exact.count, exact.minimum, exact.maximum)
    for name in ("mean", "p50", "p90", "p99", "p999"):
        assert getattr(counted, name) == pytest.approx(getattr(exact, name), rel=1 / 2048)


def test_few_samples_and_asked_for_ones_are_all_kept_in_order() -> None:
    few, kept = Samples(), Samples(keep=True)
    few.add([3.0, 1.0])
    few.add([2.0])
    assert few.exact and few.raw.tolist() == [3.0, 1.0, 2.0]
    assert few.distribution() == distribution([3.0, 1.0, 2.0])
    kept.add([1e-6] * (1 << 20))
    kept.add([2e-6])
    assert len(kept.raw) == (1 << 20) + 1
    assert kept.distribution().maximum == 2e-6
