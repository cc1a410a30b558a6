import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kvdiag.attribution.nnls import bounded_least_squares


@given(st.integers(0, 10_000), st.integers(1, 6), st.floats(0.05, 5.0))
def test_solution_meets_the_optimality_conditions(seed: int, columns: int, bound: float) -> None:
    random = np.random.default_rng(seed)
    design = random.normal(size=(2, 40, columns))
    wanted = random.normal(size=(2, 40))
    gram = np.einsum("kni,knj->kij", design, design)
    target = np.einsum("kni,kn->ki", design, wanted)
    upper = np.full((2, columns), bound)
    found = bounded_least_squares(gram, target, upper)
    slope = np.einsum("kij,kj->ki", gram, found) - target
    assert ((found >= 0) & (found <= upper)).all()
    at_bound = found > upper * (1 - 1e-9)
    inside = (found > 0) & ~at_bound
    assert np.abs(slope[inside]).max(initial=0) < 1e-4
    assert (slope[found == 0] > -1e-4).all()
    assert (slope[at_bound] < 1e-4).all()


def test_a_column_of_zeros_gets_nothing_and_harms_nothing() -> None:
    gram = np.array([[[4.0, 0.0], [0.0, 0.0]]])
    found = bounded_least_squares(gram, np.array([[8.0, 0.0]]), np.full((1, 2), np.inf))
    assert found.tolist() == [[2.0, 0.0]]


def test_no_columns() -> None:
    assert bounded_least_squares(np.zeros((3, 0, 0)), np.zeros((3, 0)), np.zeros((3, 0))).shape == (3, 0)
