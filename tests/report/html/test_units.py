import math

import pytest

from kvdiag.report.html import units


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (0.0, "0 s"),
        (1.5e-6, "1.5 µs"),
        (0.0244, "24.4 ms"),
        (0.9999, "1 s"),
        (0.9992, "999 ms"),
        (1.0, "1 s"),
        (-0.003, "−3 ms"),
        (7204.0, "7,204 s"),
        (4e-10, "0.0004 µs"),
        (None, "–"),
        (math.nan, "–"),
        (math.inf, "∞"),
    ],
)
def test_durations_read_well(value: float | None, said: str) -> None:
    assert units.duration(value) == said


def test_an_interval_is_in_one_unit_with_its_sign() -> None:
    assert units.interval(0.0244, -0.001, 0.0375) == "+24.4 (−1.0 to 37.5) ms"
    assert units.interval(0.5, None, None) == "+500 ms"
    assert units.interval(-0.5, -1.5, 0.1) == "−0.50 (−1.50 to 0.10) s"


def test_other_units() -> None:
    assert units.percent(0.0834) == "8.3 %"
    assert units.percent(-0.5) == "−50 %"
    assert units.percent(0.0) == "0 %"
    assert units.percent(-0.0001) == "0.0 %"
    assert units.shares(0.3217, 0.2, 1.0) == "32.2 % (20.0 to 100.0)"
    assert units.moment("2026-11-29T23:47:35.758Z") == "2026-11-29 23:47:35 UTC"
    assert units.moment("yesterday") == "yesterday"
    assert units.size(1 << 20) == "1 MiB"
    assert units.size(1023) == "1,023 B"
    assert units.bits(1.25e9) == "10 Gb/s"
    assert units.bits(None) == "–"
    assert units.count(1, "request") == "1 request"
    assert units.count(2500, "request") == "2,500 requests"
    assert units.number(1234567.0) == "1,234,567"
    assert units.number(1e-9) == "1.00e−09"
    assert units.in_unit(0.5, "ratio") == "50 %"
