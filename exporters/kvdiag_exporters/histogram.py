"""Counting values into buckets, for a bounded number of label combinations."""

from bisect import bisect_left
from collections.abc import Iterator

from kvdiag_exporters.catalog import Buckets, Exemplar, Metric, Sample
from kvdiag_exporters.going_on import Gone

MOST_SERIES = 256
OVERFLOW = "(other)"
"""Label values of everything that came after MOST_SERIES combinations."""


class Histograms:
    """One histogram metric: a row of buckets per combination of label values, the first MOST_SERIES of them."""

    def __init__(self, metric: Metric, bounds: tuple[float, ...]) -> None:
        self.metric = metric
        self._bounds = bounds
        self._counts: dict[tuple[str, ...], list[int]] = {}
        self._sums: dict[tuple[str, ...], float] = {}
        self._exemplars: dict[tuple[str, ...], list[Exemplar | None]] = {}

    def observe(self, value: float, labels: tuple[str, ...], exemplar: Exemplar | None = None) -> None:
        """Count one value, in the metric's unit; its exemplar takes the place of the bucket's last one."""
        counts = self._counts.get(labels)
        if counts is None:
            if len(self._counts) >= MOST_SERIES:
                labels = (OVERFLOW,) * len(labels)
            counts = self._counts.setdefault(labels, [0] * (len(self._bounds) + 1))
            self._sums.setdefault(labels, 0.0)
        bucket = bisect_left(self._bounds, value)
        counts[bucket] += 1
        if exemplar is not None:
            self._exemplars.setdefault(labels, [None] * len(counts))[bucket] = exemplar
        self._sums[labels] += value

    def go_on(self, before: "Histograms", gone: Gone) -> None:
        """Begin with what another one of the metric has counted, without the series of what is gone."""
        if before._bounds != self._bounds:
            return
        self._counts = {labels: one for labels, one in before._counts.items() if not gone.has(self.metric, labels)}
        self._sums = {labels: before._sums[labels] for labels in self._counts}
        self._exemplars = {labels: one for labels, one in before._exemplars.items() if labels in self._counts}

    def samples(self) -> Iterator[Sample]:
        """Yield every combination seen so far."""
        for labels, counts in list(self._counts.items()):
            exemplars = tuple(self._exemplars.get(labels, ()))
            yield self.metric.sample(Buckets(self._bounds, tuple(counts), self._sums[labels], exemplars), *labels)
