"""What a diagnosis of very many requests costs: processor time and memory, reading the bundle included.

Usage: python benchmarks/attribution_speed.py [--requests N] [--nodes N] [--metrics N] [--seconds S]

Writes a bundle (Parquet) of that size with a fault half-way, and diagnoses it in a process of its own, on one core.
benchmarks/attribution_live.py measures the exporter's updates.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

METRICS = (
    *("nic.tx_bytes", "nic.rx_bytes", "nic.cnp", "nic.ecn_marked", "nic.pause_us", "nic.out_of_sequence"),
    *("nic.retransmits", "nic.ack_timeouts", "nic.link_gbps", "nic.symbol_errors", "host.tcp_rx_bytes"),
    *("reg.mr_registered", "reg.mr_register_us", "reg.cache_misses", "reg.cache_lookups", "conn.qp_created"),
    *("conn.handle_alloc_failures", "conn.handles_in_use", "engine.prefill_queue_depth"),
    *("engine.prefill_batch_tokens", "engine.prefill_tokens", "engine.arrivals", "engine.kv_cache_usage"),
    *("engine.admit_queue_depth", "engine.pull_queue_depth", "engine.pulls_in_flight"),
)
START_S = 1_770_000_000.0
STANDING_STILL = (
    *("nic.pause_us", "nic.out_of_sequence", "nic.retransmits", "nic.ack_timeouts", "nic.symbol_errors"),
    *("host.tcp_rx_bytes", "reg.mr_registered", "reg.mr_register_us", "reg.cache_misses", "conn.qp_created"),
    *("conn.handle_alloc_failures", "engine.admit_queue_depth", "engine.pull_queue_depth"),
)
"""Metrics that a healthy cluster does not count at all."""
GAUGES = ("depth", "in_flight", "gbps", "usage", "batch_tokens", "in_use")
ONE_CORE = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
CHILD = """
import resource, time
begin = time.process_time()
from kvdiag.attribution import diagnose
from kvdiag.sources.bundle import read_bundle
import sys
bundle = read_bundle(sys.argv[1])
read = time.process_time()
diagnosis = diagnose(bundle)
done = time.process_time()
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
verdict = diagnosis.verdict
print(f"{len(bundle.requests)} requests, {len(bundle.series)} series: read {read - begin:.1f} s, diagnosed "
      f"{done - read:.1f} s of processor time; peak {peak:.2f} GiB; {verdict.status} {verdict.cause} "
      f"{verdict.confidence:.2f}")
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=1_000_000)
    parser.add_argument("--nodes", type=int, default=16)
    parser.add_argument("--metrics", type=int, default=len(METRICS))
    parser.add_argument("--seconds", type=int, default=1200)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), arguments.requests, arguments.nodes, METRICS[: arguments.metrics], arguments.seconds)
        print(f"written with {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.1f} GiB", time.strftime("%T"))
        subprocess.run([sys.executable, "-c", CHILD, folder], check=True, env=os.environ | ONE_CORE)
    return 0


def columns_of(requests: int, nodes: int, seconds: int, *, lossy: bool = True) -> dict[str, np.ndarray]:
    """Return simulated requests; where `lossy`, packets are lost at one decode node in the second half."""
    random = np.random.default_rng(1)
    arrival = np.sort(random.uniform(0, seconds, requests))
    prompt = np.clip(random.lognormal(7.3, 0.6, requests), 64, 16000)
    uncached = prompt * random.beta(3, 5, requests)
    prefill = random.integers(0, nodes // 2, requests)
    decode = random.integers(0, nodes // 2, requests)
    sick = (arrival > seconds / 2) & (decode == 1) & lossy
    stages = {
        "queue_s": random.exponential(0.05, requests),
        "prefill_s": 0.01 + uncached * 2e-4 * random.lognormal(0, 0.1, requests),
        "admit_s": np.zeros(requests),
        "pull_wait_s": random.exponential(0.001, requests),
        "setup_s": np.zeros(requests),
        "register_s": np.zeros(requests),
        "handle_s": np.zeros(requests),
        "post_s": prompt * 1e-6,
        "wire_s": prompt * 1.5e-5 * random.lognormal(0, 0.2, requests) + sick * random.exponential(0.3, requests),
        "first_step_s": 0.025 * random.lognormal(0, 0.1, requests),
    }
    return {
        "arrival_s": START_S + arrival,
        "prefill_node": np.array([f"p{n}" for n in range(nodes // 2)])[prefill],
        "decode_node": np.array([f"d{n}" for n in range(nodes // 2)])[decode],
        "prompt_tokens": np.round(prompt),
        "uncached_tokens": np.round(uncached),
        "turn": random.geometric(0.45, requests).astype(float),
        "bytes": prompt * 131072.0,
        "descriptors": np.ceil(prompt / 2),
        "batch_tokens": np.round(uncached * (1 + random.exponential(0.5, requests))),
        "ttft_s": np.sum(list(stages.values()), axis=0),
        **stages,
    }


def counters_of(
    nodes: int, metrics: tuple[str, ...], seconds: int, *, lossy: bool = True
) -> list[tuple[str, str, np.ndarray]]:
    """Return (node, metric, a value each second); where `lossy`, d1 sends again in the second half."""
    random = np.random.default_rng(2)
    late = np.arange(seconds) > seconds / 2
    found = []
    for node in (f"{side}{n}" for side in "pd" for n in range(nodes // 2)):
        for metric in metrics:
            rate = random.poisson(5, seconds).astype(float)
            if metric.endswith("gbps"):
                rate = np.full(seconds, 100.0)
            elif metric in STANDING_STILL:
                rate = np.where(late & lossy & (node == "d1") & (metric == "nic.retransmits"), rate + 2000, rate * 0)
            found.append((node, metric, rate if metric.endswith(GAUGES) else np.cumsum(rate)))
    return found


def write(folder: Path, requests: int, nodes: int, metrics: tuple[str, ...], seconds: int) -> None:
    """Write a bundle whose second half loses packets at one decode node."""
    table = columns_of(requests, nodes, seconds)
    table = {"request_id": np.array([f"request-{n}" for n in range(requests)]), **table}
    pq.write_table(pa.table(table), folder / "requests.parquet")
    series = counters_of(nodes, metrics, seconds)
    times = START_S + np.arange(seconds)
    long = {
        "time_s": np.concatenate([times for _ in series]),
        "value": np.concatenate([values for _, _, values in series]),
        "node": np.repeat([node for node, _, _ in series], seconds),
        "metric": np.repeat([metric for _, metric, _ in series], seconds),
    }
    pq.write_table(pa.table(long), folder / "counters.parquet")
    kinds = {name: {"kind": "gauge" if name.endswith(GAUGES) else "counter"} for name in metrics}
    meta = {"schema": "kvdiag.bundle/1", "sampling": 1.0, "metrics": kinds, "incident_start_s": START_S + seconds / 2}
    (folder / "meta.json").write_text(json.dumps(meta))


if __name__ == "__main__":
    raise SystemExit(main())
