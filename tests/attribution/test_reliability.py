"""The stored calibration: how it was made, and what confidence stated with it was worth on further worlds."""

from itertools import pairwise

import numpy as np
import pytest

from kvdiag.attribution.reliability import MOST, calibrated, isotonic, table

KINDS = ("fault", "drift", "standing", "windows")


def test_pooling_makes_shares_rise_and_few_verdicts_claim_little() -> None:
    assert isotonic([0, 9, 4], [0, 10, 10]) == pytest.approx([0.5, 14 / 22, 14 / 22])
    assert isotonic([99], [100]) == pytest.approx([100 / 102])
    assert isotonic([1], [1]) == pytest.approx([2 / 3])


def test_the_table_says_how_it_was_made() -> None:
    stored = table()
    assert stored["how"].startswith("python benchmarks/attribution_calibrate.py --worlds ")
    assert stored["kinds"].keys() == set(KINDS)
    for counts in (*stored["kinds"].values(), stored["stated"]):
        assert all(0 <= right <= of for right, of in zip(counts["right"], counts["of"], strict=True))
    assert sum(sum(counts["of"]) for counts in stored["kinds"].values()) >= 200


@pytest.mark.parametrize("kind", KINDS)
def test_confidence_rises_with_the_raw_one(kind: str) -> None:
    values = [calibrated(float(raw), kind) for raw in np.linspace(0, 1, 101)]  # type: ignore[arg-type]
    assert values[0] == 0
    assert all(a <= b + 1e-12 for a, b in pairwise(values))
    assert max(values) <= MOST


def test_what_was_stated_on_further_worlds_was_worth_it() -> None:
    stated = table()["stated"]
    bins = list(zip(stated["edges"][:-1], stated["right"], stated["of"], strict=True))
    assert sum(of for _, _, of in bins) >= 40
    for low, right, of in bins:
        # Within two standard errors of the bin's lower edge; at 0.9 and above 95 of 100.
        assert right / max(of, 1) >= low - 2 * np.sqrt(low * (1 - low) / max(of, 1)) or of == 0
    _, right, of = bins[-1]
    assert right / of >= 0.95
