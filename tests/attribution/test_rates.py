"""What counters did in the baseline and in the incident."""

import numpy as np
import pytest

from kvdiag.attribution.rates import change_rates
from kvdiag.derive.counters import CounterBank
from kvdiag.model.bundle import CounterSeries


def test_a_split_that_is_found_a_moment_late_leaves_the_baseline_low() -> None:
    time_s = np.arange(0.0, 60.1, 0.1)
    total = 100.0 * np.maximum(time_s - 30.0, 0.0)
    one = CounterSeries(node="d0", device=None, metric="nic.retransmits", time_s=time_s, value=total)
    rate = change_rates(CounterBank([one], {}), ((0.0, 30.1),), ((30.1, 60.0),))["nic.retransmits"]["d0"]
    assert rate.base == pytest.approx(10.0 / 30.1)
    assert rate.base_high <= 1.0
    assert rate.incident == pytest.approx(100.0)


def test_the_usual_height_is_that_of_stretches_of_about_ten_seconds() -> None:
    time_s = np.arange(0.0, 101.0)
    total = np.cumsum(np.where(time_s % 10 == 5, 30.0, 0.0))
    one = CounterSeries(node="d0", device=None, metric="nic.cnp", time_s=time_s, value=total)
    rate = change_rates(CounterBank([one], {}), ((0.0, 50.0), (60.0, 100.0)), ((50.0, 60.0),))["nic.cnp"]["d0"]
    assert rate.base == pytest.approx(3.0)
    assert rate.base_high == pytest.approx(3.0)
