"""What Prometheus would have kept of a simulated cluster: sums and counts of histograms, scraped every 15 seconds."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from kvdiag.derive.windows import window_bundle
from kvdiag.model.bundle import Bundle, CounterSeries
from kvdiag.model.windows import HistogramSeries
from tests.attribution.cluster import START_S, Cluster, Traffic, draw, run
from tests.attribution.recording import Recorder, record

Floats = NDArray[np.float64]

SCRAPE_S = 15.0
PREFILL = ("queue_s", "prefill_s", "prompt_tokens", "uncached_tokens", "batch_tokens")
DECODE = ("kv_wait_s", "wire_s", "post_s", "bytes", "descriptors", "first_step_s")
KV = ("admit_s", "pull_wait_s", "setup_s", "register_s", "handle_s", "post_s", "wire_s")


def histograms_of(world: Cluster, seen: Traffic) -> tuple[HistogramSeries, ...]:
    """Return what prefill engines count when a request is computed, and decode engines when it has its first token."""
    scrapes = np.arange(0.0, world.seconds + SCRAPE_S, SCRAPE_S)
    arrival = seen.columns["arrival_s"]
    computed = arrival + seen.stages["queue_s"] + seen.stages["prefill_s"]
    values = {**seen.columns, **seen.stages, "kv_wait_s": np.sum([seen.stages[name] for name in KV], axis=0)}
    found = []
    for side, nodes, moment, names, count in (
        ("p", seen.prefill, computed, PREFILL, world.prefills),
        ("d", seen.decode, arrival + seen.ttft, DECODE, world.decodes),
    ):
        for index in range(count):
            rows = np.flatnonzero(nodes == index)
            rows = rows[np.argsort(moment[rows])]
            at = np.searchsorted(moment[rows], scrapes)
            for name in names:
                running = np.concatenate([[0.0], np.cumsum(values[name][rows])])
                found.append(
                    HistogramSeries(
                        quantity=name,
                        prefill_node=f"p{index}" if side == "p" else None,
                        decode_node=f"d{index}" if side == "d" else None,
                        time_s=START_S + scrapes,
                        total=running[at],
                        count=at.astype(np.float64),
                    )
                )
    return tuple(found)


def windows_of(world: Cluster, recorder: Recorder) -> Bundle:
    """Return the bundle of window means, with the counters scraped as seldom; announced where the recorder says so."""
    bundle, _ = record(world, recorder)
    seen = run(world, draw(world))
    begin = START_S + world.start * world.seconds
    histograms = histograms_of(world, seen)
    if recorder.whole:
        kept = histograms[0].time_s >= begin
        histograms = tuple(
            HistogramSeries(
                quantity=one.quantity,
                prefill_node=one.prefill_node,
                decode_node=one.decode_node,
                time_s=one.time_s[kept],
                total=one.total[kept],
                count=one.count[kept],
            )
            for one in histograms
        )
    made = window_bundle("histograms", histograms, tuple(_scraped(one) for one in bundle.series), bundle.metrics)
    if bundle.incident_start_s is None:
        return made
    return replace(made, incident_start_s=bundle.incident_start_s)


def _scraped(one: CounterSeries) -> CounterSeries:
    times = np.arange(one.time_s[0], one.time_s[-1], SCRAPE_S)
    index = np.minimum(np.searchsorted(one.time_s, times), len(one.time_s) - 1)
    return CounterSeries(
        node=one.node, device=one.device, metric=one.metric, time_s=one.time_s[index], value=one.value[index]
    )
