"""What a raw confidence was worth: how often the cause was the right one, on simulated clusters of known truth.

The table is reliability.json beside this file; benchmarks/attribution_calibrate.py makes it.
"""

import json
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from itertools import pairwise
from typing import Any, Literal

import numpy as np

Kind = Literal["fault", "drift", "standing", "windows"]
"""A fault against a baseline, drift of load or prompts against a baseline, a fault without one, means over windows."""

MOST = 0.99
"""No finite number of simulated worlds shows more."""


@cache
def table() -> dict[str, Any]:
    """Return the stored table: how it was made, bins of the raw confidence, and by kind how many were right of all."""
    stored: dict[str, Any] = json.loads(
        files("kvdiag.attribution").joinpath("reliability.json").read_text(encoding="utf-8")
    )
    return stored


def calibrated(raw: float, kind: Kind) -> float:
    """Return the confidence (0-1) that a raw one of that kind is worth; below the first bin, the raw one."""
    edges, counts = table()["edges"], table()["kinds"][kind]
    middles = [(a + b) / 2 for a, b in pairwise(edges)]
    worth = isotonic(counts["right"], counts["of"])
    return float(min(np.interp(raw, [0.0, edges[0], *middles, 1.0], [0.0, edges[0], *worth, worth[-1]]), MOST))


def isotonic(right: Sequence[int], of: Sequence[int]) -> list[float]:
    """Return the share right of each bin, made non-decreasing by pooling adjacent violators.

    Bins begin at (right + 1) / (of + 2) (Laplace), so that few verdicts claim little.
    """
    blocks: list[tuple[float, float, int]] = []
    for hits, count in zip(right, of, strict=True):
        blocks.append((hits + 1.0, count + 2.0, 1))
        while len(blocks) > 1 and blocks[-2][0] / blocks[-2][1] >= blocks[-1][0] / blocks[-1][1]:
            (a, b, n), (c, d, m) = blocks[-2:]
            # The pooled block keeps the prior of one bin.
            blocks[-2:] = [(a + c - 1.0, b + d - 2.0, n + m)]
    return [hits / count for hits, count, width in blocks for _ in range(width)]
