"""A part of a bundle's requests, evenly over time, for answers that must be quick."""

from dataclasses import replace

import numpy as np

from kvdiag.model.bundle import Bundle


def thinned(bundle: Bundle, most_rows: int, seed: int = 0) -> Bundle:
    """Return the bundle with at most about `most_rows` requests, one drawn from each run of as many; counters stay."""
    count = len(bundle.requests)
    if count <= most_rows:
        return bundle
    step = int(np.ceil(count / most_rows))
    starts = np.arange(0, count, step)
    rows = np.minimum(starts + np.random.default_rng(seed).integers(0, step, len(starts)), count - 1)
    requests = bundle.requests
    kept = replace(
        requests,
        ids=[requests.ids[row] for row in rows.tolist()],
        numbers={name: values[rows] for name, values in requests.numbers.items()},
        labels={name: replace(one, codes=one.codes[rows]) for name, one in requests.labels.items()},
    )
    note = f"{len(rows)} of {count} recorded requests were looked at, evenly over time"
    share = (bundle.sampling or 1.0) * len(rows) / count
    return replace(bundle, requests=kept, sampling=share, notes=(*bundle.notes, note))
