"""Percentiles of per-operation samples."""

from collections.abc import Sequence

import numpy as np

from kvdiag.model.measurement import Distribution


def distribution(samples: Sequence[float]) -> Distribution:
    """Return the order statistics of at least one sample, in its own unit.

    A percentile is the smallest sample that at least that share of all samples does not exceed ("inverted CDF",
    Hyndman and Fan's type 1): always a value that was really observed.
    """
    values = np.sort(np.asarray(samples, dtype=np.float64))
    p50, p90, p99, p999 = np.quantile(values, [0.5, 0.9, 0.99, 0.999], method="inverted_cdf")
    return Distribution(
        count=len(values),
        minimum=float(values[0]),
        mean=float(values.mean()),
        p50=float(p50),
        p90=float(p90),
        p99=float(p99),
        p999=float(p999),
        maximum=float(values[-1]),
    )
