"""In which order causes are listed."""

from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from kvdiag.attribution.assessment import ranking
from kvdiag.attribution.columns import Columns

FAULT, DRIFT = (SimpleNamespace(cause=SimpleNamespace(workload=workload)) for workload in (False, True))


@pytest.mark.parametrize(
    ("score", "excess", "passes", "critical", "order"),
    [
        ((0.1, 0.2, 0.3), (0.1, 0.2, 0.3), (False, False, False), (False, False, False), (2, 1, 0)),
        ((0.1, 0.2, 0.3), (0.1, 0.2, -0.1), (False, False, False), (False, False, False), (1, 0, 2)),
        ((0.1, 0.2, 0.25), (0.1, 0.2, 0.3), (True, False, False), (False, False, False), (0, 2, 1)),
        ((0.05, 0.2, 0.3), (0.1, 0.2, 0.3), (True, False, False), (False, False, False), (2, 1, 0)),
        ((0.05, 0.2, 0.3), (0.1, 0.2, 0.3), (True, False, False), (True, False, False), (0, 2, 1)),
    ],
    ids=["by score", "what made the mean shorter last", "a fault before drift", "not before much more", "if critical"],
)
def test_ranking(
    score: tuple[float, ...],
    excess: tuple[float, ...],
    passes: tuple[bool, ...],
    critical: tuple[bool, ...],
    order: tuple[int, ...],
) -> None:
    columns = cast(Columns, SimpleNamespace(mechanisms=(FAULT, DRIFT, DRIFT)))
    assert ranking(columns, np.array(score), np.array(excess), passes, np.array(critical)) == order
