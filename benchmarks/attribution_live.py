"""What one update of the exporter's attribution costs: its whole window of requests and counters, again and again.

Usage: python benchmarks/attribution_live.py [--requests N] [--nodes N] [--seconds S] [--runs N]

Fills the exporter's own windows with that many requests and 26 metrics a second of each node, with packets lost at
one decode node in the second half, with nothing wrong, and with a reason that no counter tells. Prints milliseconds of
wall clock and of one processor core for taking both windows and diagnosing them, and beside them the diagnosis of every
request (`kvdiag diagnose`).
"""

import argparse
import os
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.attribution_speed import GAUGES, METRICS, ONE_CORE, START_S, columns_of, counters_of
from kvdiag.attribution import diagnose
from kvdiag.model.bundle import Bundle
from kvdiag.model.transfer import TransferRecord
from kvdiag.sources.base import SystemClock
from kvdiag_exporters.catalog import Metric, Recorded
from kvdiag_exporters.records.attribution import OnlineAttribution
from kvdiag_exporters.records.counter_window import CounterWindow
from kvdiag_exporters.records.window import RecordWindow

LIMIT_S = 0.2
WORLDS = {
    "loss at one node": (True, True),
    "nothing wrong": (False, False),
    "slower, and no counter says why": (True, False),
}
"""Whether requests take longer at one node in the second half, and whether its NIC counts why."""


class Then(SystemClock):
    """The end of the recording."""

    def __init__(self, now_s: float) -> None:
        self._now_s = now_s

    def wall_s(self) -> float:
        return self._now_s


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--nodes", type=int, default=16)
    parser.add_argument("--seconds", type=int, default=1200)
    parser.add_argument("--runs", type=int, default=15)
    arguments = parser.parse_args()
    if not os.environ.keys() >= ONE_CORE.keys():  # what reads them was imported before this line
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | ONE_CORE)
    slow = False
    for name, (lossy, counted) in WORLDS.items():
        online, bundle = filled(arguments.requests, arguments.nodes, arguments.seconds, lossy=lossy, counted=counted)
        wall, cpu = [], []
        for _ in range(arguments.runs):
            begin = time.perf_counter(), time.process_time()
            found = online.attribute()
            wall.append(time.perf_counter() - begin[0])
            cpu.append(time.process_time() - begin[1])
        assert found.diagnosis is not None, found.error
        said = found.diagnosis.verdict
        begin_s = time.process_time()
        whole = diagnose(bundle).verdict
        whole_s = time.process_time() - begin_s
        print(
            f"{name}: {found.requests} requests, {len(bundle.series)} "
            f"series: updated in {statistics.median(wall) * 1e3:.0f} ms (median of {arguments.runs}; best "
            f"{min(wall) * 1e3:.0f}, worst {max(wall) * 1e3:.0f}), {statistics.median(cpu) * 1e3:.0f} ms of one core; "
            f"{said.status} {said.cause} {said.confidence:.2f}\n  every request: {whole_s * 1e3:.0f} ms; "
            f"{whole.status} {whole.cause} {whole.confidence:.2f}"
        )
        slow = slow or statistics.median(cpu) > LIMIT_S
    print(f"limit: {LIMIT_S * 1e3:.0f} ms of one core, {'missed' if slow else 'kept'}")
    return int(slow)


def filled(requests: int, nodes: int, seconds: int, *, lossy: bool, counted: bool) -> tuple[OnlineAttribution, Bundle]:
    """Return the exporter's attribution over full windows, and the bundle of all that is in them."""
    columns = columns_of(requests, nodes, seconds, lossy=lossy)
    records, roles = RecordWindow(), {f"p{n}": "prefill" for n in range(nodes // 2)}
    roles |= {f"d{n}": "decode" for n in range(nodes // 2)}
    names = [name for name in columns if name != "request_id"]
    rows = zip(*(columns[name].tolist() for name in names), strict=True)
    records.add_requests(
        [TransferRecord(request_id=str(n), **dict(zip(names, row, strict=True))) for n, row in enumerate(rows)]
    )
    counters = CounterWindow({}, roles)
    metrics = {
        name: Metric(
            name=f"kvdiag_test_{name.replace('.', '_')}",
            kind="gauge" if name.endswith(GAUGES) else "counter",
            help="Simulated.",
            labels=("node",),
            recorded=(Recorded(name=name, unit=""),),
        )
        for name in METRICS
    }
    series = counters_of(nodes, METRICS, seconds, lossy=counted)
    for second in range(seconds):
        samples = [metrics[name].sample(float(values[second]), node) for node, name, values in series]
        counters.observe(samples, START_S + second)
    end_s = START_S + seconds
    online = OnlineAttribution(records, counters, roles, Then(end_s), 60.0, float(seconds))
    taken = records.columns(START_S)
    assert taken is not None
    kept, info = counters.series(START_S)
    return online, Bundle(origin="all of it", requests=taken[0], series=kept, metrics=info, roles=roles)


if __name__ == "__main__":
    raise SystemExit(main())
