import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvdiag.derive.counters import CounterBank, unwrapped
from kvdiag.model.bundle import BundleEvent, CounterSeries, MetricInfo


def _series(value: list[float], device: str | None = None, metric: str = "nic.cnp") -> CounterSeries:
    numbers = np.array(value)
    return CounterSeries(
        node="a", device=device, metric=metric, time_s=np.arange(len(numbers), dtype=np.float64), value=numbers
    )


@given(st.lists(st.integers(0, 1000), min_size=2, max_size=50))
def test_a_counter_never_runs_backwards(values: list[int]) -> None:
    curve = unwrapped(np.array(values, dtype=float))
    assert (np.diff(curve) >= 0).all()


def test_a_reset_counts_from_zero() -> None:
    assert unwrapped(np.array([5.0, 8.0, 2.0, 4.0])).tolist() == [0, 3, 5, 7]


def test_rates_add_over_devices_and_gauges_average() -> None:
    both = [_series([0, 10, 20, 30], "x"), _series([0, 1, 2, 3], "y")]
    counters = CounterBank(both, {"nic.cnp": MetricInfo(kind="counter", unit="1")})
    gauges = CounterBank(both, {"nic.cnp": MetricInfo(kind="gauge", unit="1")})
    assert counters.mean("nic.cnp", "a", 0.5, 2.5).item() == 11
    assert gauges.mean("nic.cnp", "a", 0.0, 2.0).item() == (10 + 1) / 2


def test_what_was_not_recorded_is_nan_and_not_zero() -> None:
    bank = CounterBank([_series([0, 1, 2])], {"nic.cnp": MetricInfo(kind="counter", unit="1")})
    assert np.isnan(bank.mean("nic.cnp", "b", 0, 1))
    assert np.isnan(bank.mean("nic.pause_us", "a", 0, 1))
    assert np.isnan(bank.mean("nic.cnp", "a", 10, 11))
    rows = bank.per_row("nic.cnp", ("a", "b"), np.array([0, 1, -1], dtype=np.int32), np.zeros(3), np.ones(3))
    assert rows[0] == 1
    assert np.isnan(rows[1:]).all()


def test_events_stand_in_for_a_counter_that_is_missing() -> None:
    bank = CounterBank([], {})
    bank.add_events("reg.mr_registered", [BundleEvent(time_s=5.0, node="a"), BundleEvent(time_s=6.0, node="a")])
    assert bank.mean("reg.mr_registered", "a", 4.0, 8.0).item() > 0
    assert bank.nodes("reg.mr_registered") == ("a",)


def test_events_never_replace_a_counter_that_was_recorded() -> None:
    bank = CounterBank([_series([0, 1, 2])], {"nic.cnp": MetricInfo(kind="counter", unit="1")})
    bank.add_events("nic.cnp", [BundleEvent(time_s=1.0, node="b")])
    assert bank.nodes("nic.cnp") == ("a",)


def test_one_interval_is_as_many_are() -> None:
    series = [_series([0.0, 10, 30, 5], metric="nic.rx_bytes"), _series([1.0, 2, 3, 4], metric="nic.link_gbps")]
    bank = CounterBank(series, {"nic.link_gbps": MetricInfo(kind="gauge", unit="")})
    for metric in ("nic.rx_bytes", "nic.link_gbps", "no.such"):
        for start, stop in ((0.0, 3.0), (0.5, 1.25), (-5.0, 1.0), (8.0, 9.0), (2.0, 2.0)):
            many = float(bank.mean(metric, "a", start, stop))
            assert bank.over(metric, "a", start, stop) == pytest.approx(many, nan_ok=True)
