"""Simulated recordings one after the other, as one bundle; counters begin anew where the next one does (a restart)."""

from dataclasses import replace

import numpy as np

from kvdiag.model.bundle import Bundle, Labels


def one_after_the_other(*bundles: Bundle) -> Bundle:
    """Return the recordings end to end on one clock, without an announced incident; all have the same columns."""
    parts, shift = [], 0.0
    for bundle in bundles:
        arrival = bundle.requests.numbers["arrival_s"]
        series = tuple(replace(one, time_s=one.time_s + shift) for one in bundle.series)
        parts.append((bundle, arrival + shift, series))
        shift += 60.0
    first = bundles[0]
    numbers = {name: np.concatenate([one.requests.numbers[name] for one in bundles]) for name in first.requests.numbers}
    numbers["arrival_s"] = np.concatenate([arrival for _, arrival, _ in parts])
    labels = {
        name: Labels(label.names, np.concatenate([one.requests.labels[name].codes for one in bundles]))
        for name, label in first.requests.labels.items()
    }
    series = tuple(
        replace(
            one,
            time_s=np.concatenate([pieces[i].time_s for _, _, pieces in parts]),
            value=np.concatenate([pieces[i].value for _, _, pieces in parts]),
        )
        for i, one in enumerate(first.series)
    )
    ids = [f"r{row}" for row in range(len(numbers["arrival_s"]))]
    requests = replace(first.requests, ids=ids, numbers=numbers, labels=labels)
    return replace(first, requests=requests, series=series, incident_start_s=None)
