"""A part of a bundle's requests, evenly over time, for answers that must be quick."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from kvdiag.model.bundle import Bundle

LIVE_ROWS = 5000
"""Of a live window: from 2000 rows on the bar for naming a cause no longer depends on their number."""


def drawn(count: int, most_rows: int, seed: int = 0) -> NDArray[np.intp]:
    """Return at most about `most_rows` of `count` positions, one drawn from each run of as many."""
    step = max(1, int(np.ceil(count / most_rows)))
    starts = np.arange(0, count, step)
    if step == 1:
        return starts
    rows: NDArray[np.intp] = np.minimum(starts + np.random.default_rng(seed).integers(0, step, len(starts)), count - 1)
    return rows


def thinned(bundle: Bundle, most_rows: int, seed: int = 0) -> Bundle:
    """Return the bundle with at most about `most_rows` requests, one drawn from each run of as many; counters stay."""
    count = len(bundle.requests)
    if count <= most_rows:
        return bundle
    rows = drawn(count, most_rows, seed)
    requests = bundle.requests
    kept = replace(
        requests,
        ids=[requests.ids[row] for row in rows.tolist()],
        numbers={name: values[rows] for name, values in requests.numbers.items()},
        labels={name: replace(one, codes=one.codes[rows]) for name, one in requests.labels.items()},
    )
    return of_more(replace(bundle, requests=kept), count)


def of_more(bundle: Bundle, count: int) -> Bundle:
    """Return the bundle of some of `count` recorded requests, with its sampling and a note that say so."""
    rows = len(bundle.requests)
    if rows == count:
        return bundle
    note = f"{rows} of {count} recorded requests were looked at, evenly over time"
    share = (bundle.sampling or 1.0) * rows / count
    return replace(bundle, sampling=share, notes=(*bundle.notes, note))
