"""Figures of a diagnosis as people read them."""

import pytest

from kvdiag.report.diagnosis_text import _between, _shares, seconds


@pytest.mark.parametrize(
    ("value", "said"), [(-1.18e-8, "0 ms"), (-7.8e-19, "0 ms"), (0.0, "0 ms"), (-2e-7, "-0.0002 ms"), (1.5, "+1.5 s")]
)
def test_rounding_is_nothing(value: float, said: str) -> None:
    assert seconds(value) == said


def test_an_interval_and_a_share_have_no_negative_nothing() -> None:
    assert _between(-1e-12, -0.001, 0.002) == "0 (-1 to +2) ms"
    assert _shares(-1e-9, -0.0004, 0.33) == "0.0% (0.0 to 33.0)"
