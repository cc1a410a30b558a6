"""An hour of a cluster as Prometheus would have scraped it: a real exporter in simulated time, and an incident.

The exporter's own code reads a fixture host whose counters move; only metrics that need hardware which a fixture cannot
give (GPUs, drivers' pause counters, probes in the kernel) are drawn as plain waves from the catalogue.
"""

import itertools
import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from kvdiag.sources.base import Context
from kvdiag_exporters.catalog import Metric, metrics
from kvdiag_exporters.collectors.base import Setup, create_all
from kvdiag_exporters.config import engines, load
from kvdiag_exporters.derived.base import create_all as derive_all
from kvdiag_exporters.exposition import all_samples
from kvdiag_exporters.records.service import Records
from kvdiag_exporters.scraper import Scraper
from kvdiag_exporters.text_format import TextFormat
from tests.exporters.replay import LiveHost, answering
from tests.netlink import CAPTURE, Replay

STEP_S = 20
NODE = "decode-2"
SINCE = 0.6
"""Of the hour: when the port falls sick."""

_WAVES: dict[str, dict[str, tuple[str, ...]]] = {
    "kvdiag_exporter": {},
    "kvdiag_netdev_pause": {"device": ("ens1np0",), "direction": ("receive", "transmit"), "priority": ("3",)},
    "kvdiag_netdev_priority": {"device": ("ens1np0",), "direction": ("receive",), "priority": ("0", "3")},
    "kvdiag_gpu": {"gpu": ("0000:18:00.0", "0000:2a:00.0"), "direction": ("transmit", "receive")},
    "kvdiag_rdma_call": {"device": ("mlx5_0",), "call": ("reg_mr", "modify_qp")},
    "kvdiag_rdma_object": {"device": ("mlx5_0", "mlx5_1"), "kind": ("qp", "mr")},
}
_RATIO, _SECOND, _BYTE = 0.4, 0.02, 4e10


class Clock:
    """A clock that only the simulation moves."""

    def __init__(self, start_s: float) -> None:
        self.now_s = start_s

    def wall_s(self) -> float:
        return self.now_s

    def monotonic_s(self) -> float:
        return self.now_s


def openmetrics(folder: Path, start_s: int, end_s: int) -> str:
    """Return every scrape of the hour as OpenMetrics text with times; files of the host are written below `folder`."""
    clock = Clock(start_s)
    host = LiveHost(folder, requests_per_s=2.0, wall_s=clock.wall_s)
    found: dict[str, list[str]] = {}
    text = TextFormat()
    with answering(host) as url:
        (folder / "exporter.toml").write_text(host.config(url, NODE, NODE))
        config = load(folder / "exporter.toml")
        setup = Setup(
            node=NODE,
            engines=tuple(replace(one, metrics_interval_s=0.0) for one in engines(config, NODE)),
            context=Context(root=host.root, live=False, clock=clock),
            netlink=Replay(json.loads(CAPTURE.read_text())["asked"]),
            probe_results=config.probe_results,
        )
        assert config.records is not None
        records = Records(config.records, setup.engines, NODE, setup.stream, clock)
        setup = replace(setup, records=records)
        scraper = Scraper(create_all(setup), clock, max_age_s=0.0, derivations=derive_all(setup))
        for number, clock.now_s in enumerate(range(start_s, end_s + 1, STEP_S)):
            host.sick = clock.now_s >= start_s + SINCE * (end_s - start_s)
            host.step(STEP_S)
            records.hub.take(records.followers.poll())
            if number % 6 == 5:
                records.attribution.attribute()
            collection = scraper.collect(fresh=True)
            records.counters.observe(collection.samples, clock.now_s)
            for line in text.render(all_samples(collection, clock.now_s)).decode().splitlines():
                if not line.startswith("#"):
                    series, _, value = line.rpartition(" ")
                    found.setdefault(_tagged(series), []).append(f"{value} {clock.now_s}")
        scraper.close()
    shown = {series.partition("{")[0] for series in found}
    times = range(start_s, end_s + 1, STEP_S)
    found[_tagged("up")] = [f"1 {time_s}" for time_s in times]
    for metric in metrics():
        if not {metric.name, f"{metric.name}_count"} & shown:
            for series, values in _waves(metric, len(times)):
                found[_tagged(series)] = [f"{value:g} {time_s}" for value, time_s in zip(values, times, strict=True)]
    lines = (f"{series} {point}" for series, points in found.items() for point in points)
    return "\n".join([*lines, "# EOF", ""])


def _tagged(series: str) -> str:
    name, _, labels = series.partition("{")
    tags = f'job="kvdiag",instance="{NODE}:9846"'
    return f"{name}{{{tags},{labels}" if labels not in ("", "}") else f"{name}{{{tags}}}"


def _waves(metric: Metric, count: int) -> Iterator[tuple[str, list[float]]]:
    known = next((labels for prefix, labels in _WAVES.items() if metric.name.startswith(prefix)), None)
    if known is None:
        return
    wave = [1 + 0.3 * math.sin(place / 17) for place in range(count)]
    for values in itertools.product(*({"node": (NODE,), **known}.get(label, ("",)) for label in metric.labels)):
        labels = ",".join(f'{label}="{value}"' for label, value in zip(metric.labels, values, strict=True))
        if metric.kind == "gauge":
            bytes_ = 4.6e7 if metric.name.startswith("kvdiag_exporter") else _BYTE
            level = _RATIO if metric.unit == "ratio" else bytes_ if metric.unit == "bytes" else 1.0
            yield f"{metric.name}{{{labels}}}", [level * one if level != 1.0 else 1.0 for one in wave]
            continue
        rate = 0.02 if metric.unit == "seconds" else 50.0
        grown = [rate * STEP_S * total for total in itertools.accumulate(wave)]
        if metric.kind == "counter":
            yield f"{metric.name}{{{labels}}}", grown
            continue
        for bound, share in (("0.0001", 0.2), ("0.001", 0.9), ("0.01", 1.0), ("+Inf", 1.0)):
            yield f'{metric.name}_bucket{{{labels},le="{bound}"}}', [share * one for one in grown]
        yield f"{metric.name}_sum{{{labels}}}", [_SECOND * one for one in grown]
        yield f"{metric.name}_count{{{labels}}}", grown
