import random

import pytest

from kvdiag_probes.kv.cost import fit, predict


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
