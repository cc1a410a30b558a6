import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvdiag.derive.counters import CounterBank, node_windows, unwrapped
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
    codes = np.array([0, 1, -1], dtype=np.int32)
    rows = bank.per_row("nic.cnp", node_windows(("a", "b"), codes, np.zeros(3), np.ones(3)))
    assert rows[0] == 1
    assert np.isnan(rows[1:]).all()


def test_events_stand_in_for_a_counter_that_is_missing() -> None:
    bank = CounterBank([], {})
    events = [BundleEvent(time_s=time_s, node="a", kind="mr_register") for time_s in (5.0, 6.0)]
    bank.add_events("reg.mr_registered", [*events, BundleEvent(time_s=5.5, node="a", kind="qp_create")], "mr_register")
    assert bank.origin("reg.mr_registered") == "events of kind mr_register"
    assert bank.mean("reg.mr_registered", "a", 4.0, 8.0).item() > 0
    assert bank.nodes("reg.mr_registered") == ("a",)


def test_events_never_replace_a_counter_that_was_recorded() -> None:
    bank = CounterBank([_series([0, 1, 2])], {"nic.cnp": MetricInfo(kind="counter", unit="1")})
    bank.add_events("nic.cnp", [BundleEvent(time_s=1.0, node="b", kind="cnp")], "cnp")
    assert bank.origin("nic.cnp") == "counters"
    assert bank.nodes("nic.cnp") == ("a",)


def test_all_metrics_of_a_node_are_as_each_alone() -> None:
    other_times = _series([3.0, 5, 9], metric="nic.tx_bytes")
    series = [
        _series([0.0, 10, 30, 5], "x", "nic.rx_bytes"),
        _series([1.0, 2, 3, 4], metric="nic.link_gbps"),
        _series([7.0, 7, 8, 9], "y", "nic.rx_bytes"),
        CounterSeries(
            node="a", device=None, metric="nic.tx_bytes", time_s=other_times.time_s * 2, value=other_times.value
        ),
    ]
    bank = CounterBank(series, {"nic.link_gbps": MetricInfo(kind="gauge", unit="")})
    start, stop = np.array([0.0, 0.5, -5.0, 8.0, 2.0]), np.array([3.0, 1.25, 1.0, 9.0, 2.0])
    found = dict(bank.every_mean("a", start, stop))
    assert set(found) == {"nic.rx_bytes", "nic.link_gbps", "nic.tx_bytes"}
    rows = node_windows(("a",), np.zeros(5, dtype=np.int32), start, stop)
    for metric, means in found.items():
        assert means == pytest.approx(bank.mean(metric, "a", start, stop), nan_ok=True)
        assert means == pytest.approx(bank.per_row(metric, rows), nan_ok=True)
    assert found["nic.rx_bytes"][1] == pytest.approx((5 + 5 + 0 + 0.25) / 0.75)
    assert np.isnan(found["nic.link_gbps"][3:]).all()
    assert dict(bank.every_mean("b", start, stop)) == {}


def test_two_readings_at_one_instant_divide_by_nothing() -> None:
    twice = CounterSeries(
        node="a", device=None, metric="nic.cnp", time_s=np.array([0.0, 1.0, 1.0]), value=np.array([0.0, 2.0, 3.0])
    )
    bank = CounterBank([twice], {"nic.cnp": MetricInfo(kind="counter", unit="1")})
    assert np.isfinite(bank.mean("nic.cnp", "a", np.array([0.0, 0.5]), np.array([1.0, 2.0]))).all()
