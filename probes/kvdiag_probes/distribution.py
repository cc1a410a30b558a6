"""Percentiles of per-operation samples."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from kvdiag.model.measurement import Distribution

_EXACT_SAMPLES = 1 << 20
_STEPS = 1 << 11
"""Steps per power of two, as an HDR histogram of three significant digits has: values are off by 1/4096 at most."""
_LOWEST_EXPONENT, _EXPONENTS = -40, 64
"""From below a nanosecond to hundreds of days."""


class Samples:
    """Samples in seconds. Up to 2^20 of them are kept; more are counted in a log-linear histogram of fixed size.

    `keep` keeps them all whatever their number, for a file of raw samples.
    """

    def __init__(self, keep: bool = False) -> None:
        self._keep = keep
        self._parts: list[npt.NDArray[np.float64]] = []
        self._counts: npt.NDArray[np.int64] | None = None
        self._sum = self._count = 0.0
        self._lowest, self._highest = np.inf, 0.0

    def add(self, samples: Sequence[float]) -> None:
        """Take samples in."""
        if not samples:
            return
        values = np.asarray(samples, dtype=np.float64)
        self._count += len(values)
        self._sum += float(values.sum())
        self._lowest, self._highest = min(self._lowest, float(values.min())), max(self._highest, float(values.max()))
        if self._counts is None or self._keep:
            self._parts.append(values)
        if self._counts is not None:
            self._tally(values)
        elif self._count > _EXACT_SAMPLES:
            self._counts = np.zeros(_EXPONENTS * _STEPS, np.int64)
            self._tally(self.raw)
            if not self._keep:
                self._parts.clear()

    @property
    def exact(self) -> bool:
        """Whether every percentile is a value that was observed."""
        return self._counts is None

    @property
    def raw(self) -> npt.NDArray[np.float64]:
        """The samples in the order in which they were taken, as far as they are kept."""
        return np.concatenate([np.empty(0), *self._parts])

    def distribution(self) -> Distribution:
        """Return the order statistics of at least one sample."""
        if self._counts is None:
            return distribution(self.raw)  # type: ignore[arg-type]
        ranks = np.cumsum(self._counts)
        wanted = np.ceil(np.array([0.5, 0.9, 0.99, 0.999]) * self._count)
        p50, p90, p99, p999 = (
            min(max(self._value(int(np.searchsorted(ranks, rank))), self._lowest), self._highest) for rank in wanted
        )
        return Distribution(
            count=int(self._count),
            minimum=float(self._lowest),
            mean=self._sum / self._count,
            p50=p50,
            p90=p90,
            p99=p99,
            p999=p999,
            maximum=self._highest,
        )

    def _tally(self, values: npt.NDArray[np.float64]) -> None:
        assert self._counts is not None
        mantissa, exponent = np.frexp(values)  # 0.5 <= mantissa < 1
        step = ((mantissa - 0.5) * 2 * _STEPS).astype(np.int64)
        index = np.clip((exponent - _LOWEST_EXPONENT) * _STEPS + step, 0, len(self._counts) - 1)
        self._counts += np.bincount(index, minlength=len(self._counts))

    @staticmethod
    def _value(index: int) -> float:
        exponent, step = divmod(index, _STEPS)
        return float(np.ldexp(0.5 + (step + 0.5) / (2 * _STEPS), exponent + _LOWEST_EXPONENT))


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
