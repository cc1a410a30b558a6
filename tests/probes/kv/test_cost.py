import random
from dataclasses import replace

import pytest

from kvdiag.model.probe_kv import Coefficient, Prediction
from kvdiag_probes.kv.cost import doubt, fit, predict


def points(fixed: float, descriptor: float, byte: float, noise: float = 0.0) -> list[tuple[int, int, float]]:
    chance = random.Random(5)
    shapes = [(n, n * size) for n in (1, 8, 64, 512) for size in (4096, 65536)]
    return [
        (n, size, (fixed + n * descriptor + size * byte) * (1 + chance.uniform(-noise, noise))) for n, size in shapes
    ]


def test_exact_times_give_the_exact_coefficients() -> None:
    model = fit(points(50e-6, 4e-6, 2e-10))
    assert model.fixed_s.value == pytest.approx(50e-6)
    assert model.per_descriptor_s.value == pytest.approx(4e-6)
    assert model.per_byte_s.value == pytest.approx(2e-10)
    assert predict(model, 100, 1 << 20) == pytest.approx(50e-6 + 4e-4 + (1 << 20) * 2e-10)


def test_the_intervals_hold_the_truth_and_shrink_with_the_noise() -> None:
    widths = []
    for noise in (0.2, 0.02):
        found = fit(points(50e-6, 4e-6, 2e-10, noise)).per_descriptor_s
        assert found.low is not None and found.high is not None
        assert found.low <= 4e-6 <= found.high
        widths.append(found.high - found.low)
    assert widths[1] < widths[0] / 3


def test_no_coefficient_is_negative() -> None:
    # Time falls with the number of descriptors: the best that can be said is that they cost nothing.
    model = fit([(1, 4096, 2.0), (8, 8192, 1.5), (64, 16384, 1.2), (512, 32768, 1.0)])
    assert min(model.fixed_s.value, model.per_descriptor_s.value, model.per_byte_s.value) >= 0
    assert model.per_descriptor_s.value == 0 and model.per_descriptor_s.low is None


def test_as_many_points_as_unknowns_have_no_interval() -> None:
    model = fit(points(50e-6, 4e-6, 2e-10)[:3])
    assert model.points == 3 and model.fixed_s.low is None


def predictions(*errors: float) -> list[Prediction]:
    return [
        Prediction(pair=None, mode="block", tokens=128, predicted_s=1 + error, measured_s=1.0, relative_error=error)
        for error in errors
    ]


def test_a_fit_that_is_far_off_a_length_it_did_not_see_does_not_hold() -> None:
    model = fit(points(50e-6, 4e-6, 2e-10, 0.02))
    assert doubt(model, predictions(0.1, -0.25, 0.2)) is None
    said = doubt(model, predictions(0.1, -0.61, 0.3))
    assert said is not None and "2 of 3 predictions for 128 tokens" in said and "-61% (block)" in said
    assert "more --tokens lengths, more --repeats, quiet hosts" in said and "\n" not in said


def test_a_fit_whose_costs_are_not_told_apart_does_not_hold() -> None:
    made = replace(fit(points(50e-6, 4e-6, 2e-10, 0.02)), fixed_s=Coefficient(value=0.0, low=None, high=None))
    made = replace(made, per_descriptor_s=Coefficient(value=1e-6, low=0.0, high=8.87e-6))
    said = doubt(made, predictions(0.01))
    assert said is not None and "leaves nothing for what is fixed" in said and "a descriptor (0 to 8.87 µs)" in said
    # One of the two alone is a result: a cost that is small, or one that is uncertain.
    assert doubt(replace(made, fixed_s=Coefficient(value=1e-5, low=5e-6, high=2e-5)), predictions(0.01)) is None
    assert doubt(replace(made, per_descriptor_s=Coefficient(value=1e-6, low=5e-7, high=2e-6)), []) is None
