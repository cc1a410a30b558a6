"""How often diagnose is right on freshly simulated clusters (tests/attribution/cluster.py), with any number of seeds.

Usage: python benchmarks/attribution_simulated.py [--worlds N] [--seed S] [--only cause|two|none|unknown|chronic]
       [--keep FOLDER] [--histograms] [--verbose] [--jobs N]

The size of each fault is searched so that it costs 15 to 250 % of the healthy mean or p99 TTFT. Prints the figures, and
beside them what ranking counters by their correlation with TTFT would have named. --keep stores the simulated worlds in
a folder, and takes those that are there from it: simulating takes most of the time. --histograms shows diagnose only
what Prometheus would have kept: sums and counts of the engines' histograms and the counters, every 15 seconds.
"""

import argparse
import pickle
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.attribution_bundles import Outcome, most_correlated, summary
from kvdiag.attribution import diagnose
from kvdiag.model.bundle import Bundle
from tests.attribution.cluster import FAULTS, UNKNOWN, Cluster, Traffic, draw, run
from tests.attribution.histograms import windows_of
from tests.attribution.recording import Recorder, Truth, healthy, record, truth_of

MACHINE = ("fabric.", "registration.", "connection.")
EVIDENCE = {
    "connection.exhaustion": (("conn.handle_alloc_failures",), "full"),
    "connection.setup": (("conn.qp_created",), "full"),
    "fabric.congestion": (("nic.pause_us", "nic.cnp"), ""),
    "fabric.incast": (("engine.pulls_in_flight",), ""),
    "fabric.link_degraded": (("nic.link_gbps",), ""),
    "fabric.loss": (("nic.retransmits", "nic.out_of_sequence", "nic.ack_timeouts"), ""),
    "fabric.tcp_fallback": (("host.tcp_rx_bytes",), ""),
    "registration.cache_miss": (("reg.cache_misses",), ""),
    "registration.on_path": (("reg.mr_registered", "reg.mr_register_us"), "full"),
    "schedule.decode_admission": (("engine.admit_queue_depth",), "full"),
    "schedule.serial_pull": (("engine.pull_queue_depth",), ""),
}
"""Which metrics can tell a cause (any of them), or from which granularity on no metric is needed."""
METRICS = sorted({metric for metrics, _ in EVIDENCE.values() for metric in metrics})
ON_ONE_DECODE_NODE = (
    *("connection.exhaustion", "fabric.congestion", "fabric.incast", "fabric.link_degraded", "fabric.loss"),
    *("fabric.tcp_fallback", "registration.cache_miss", "registration.on_path"),
)
LOG_IMPACTS = (np.log(0.15), np.log(2.5))
LOG_IMPACTS_OF_TWO = (np.log(0.15), np.log(0.8))
MOST_SIZE, REACHED = 12.0, 0.95
KINDS = ("cause", "two", "none", "unknown", "chronic")


@dataclass(frozen=True)
class Case:
    kind: str
    world: Cluster
    recorder: Recorder
    truth: Truth


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worlds", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1000)
    parser.add_argument("--only", choices=KINDS)
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--histograms", action="store_true")
    parser.add_argument("--jobs", type=int, default=1, help="worlds at a time")
    arguments = parser.parse_args()
    if arguments.worlds < 1:
        parser.error(f"--worlds {arguments.worlds}: give at least 1")
    results: dict[str, list[tuple[Case, Outcome]]] = {kind: [] for kind in KINDS}
    work = partial(_work, arguments.only, arguments.seed, arguments.keep, arguments.histograms)
    with ProcessPoolExecutor(arguments.jobs) if arguments.jobs > 1 else nullcontext() as pool:
        worlds = range(arguments.worlds)
        found = list(pool.map(work, worlds)) if isinstance(pool, ProcessPoolExecutor) else map(work, worlds)
    for index, (case, outcome) in enumerate(found):
        kind = case.kind
        results[kind].append((case, outcome))
        if arguments.verbose:
            said = outcome.diagnosis.verdict
            print(
                f"{kind} {arguments.seed + index} {dict(case.world.faults)} impact {case.truth.impact:.2f} "
                f"{case.recorder.granularity} {case.recorder.sampling:g} {len(outcome.diagnosis.steps)} "
                f"-> {said.status} {said.cause} {said.confidence:.2f} {outcome.ranked[:3]}"
                f"{'' if outcome.identifiable else ' (not identifiable)'}",
                flush=True,
            )
    report(results)
    return 0


def _work(only: str | None, seed: int, keep: Path | None, histograms: bool, index: int) -> tuple[Case, Outcome]:
    return examine(only or kind_of(index), seed + index, keep, histograms=histograms)


def kind_of(index: int) -> str:
    """Return the kind of the index-th world."""
    return ("cause", "cause", "two", "none", "cause", "none", "unknown", "chronic")[index % 8]


def draw_case(kind: str, seed: int) -> Case:
    """Return a random world of that kind whose faults matter."""
    random = np.random.default_rng(seed)
    count = {"two": 2, "none": 0}.get(kind, 1)
    chosen = [UNKNOWN] if kind == "unknown" else random.choice(FAULTS, count, replace=False).tolist()
    drifts = random.uniform(0.88, 1.18, 2).tolist() if random.random() < 0.5 else [1.0, 1.0]
    world = Cluster(
        seed=seed,
        seconds=float(random.uniform(400, 900)),
        rate=float(random.uniform(5, 20)),
        prefills=int(random.integers(2, 5)),
        decodes=int(random.integers(2, 5)),
        link_gbps=float(random.choice([50.0, 100.0, 200.0, 400.0])),
        duty=float(random.choice([1.0, 1.0, 0.5, 0.3])),
        drift=(drifts[0], drifts[1]),
    )
    sampling = float(random.choice([1.0, 1.0, 0.2, 0.05, 0.02]))
    recorder = Recorder(
        sampling=max(sampling, min(1.0, 200 / (world.rate * world.seconds))),
        granularity=str(random.choice(["full", "typical", "coarse"])),
        decoys=int(random.integers(0, 3)),
        missing=tuple(metric for metric in METRICS if random.random() < 0.1),
        announced=bool(random.random() < 0.7),
        whole=kind == "chronic",
    )
    ideal = healthy(world)
    impacts = LOG_IMPACTS_OF_TWO if kind == "two" else LOG_IMPACTS
    sizes = {cause: _size(world, ideal, cause, float(np.exp(random.uniform(*impacts)))) for cause in chosen}
    world = replace(world, faults=sizes)
    truth = truth_of(world, run(world, draw(world)), ideal)
    return Case(kind, world, recorder, truth)


def _size(world: Cluster, ideal: Traffic, cause: str, impact: float) -> float:
    """Return the size at which the cause alone costs about that share of mean or p99 TTFT, by bisection."""
    low, high = 0.01, MOST_SIZE
    for _ in range(9):
        size = float(np.sqrt(low * high))
        sized = replace(world, faults={cause: size})
        found = truth_of(sized, run(sized, draw(sized)), ideal).impact
        if 0.8 < found / impact < 1.25:
            break
        low, high = (size, high) if found < impact else (low, size)
    return size


def identifiable(case: Case) -> bool:
    """Whether what was recorded could tell the causes at all, and they matter (no size makes some of them matter)."""
    if any(size > REACHED * MOST_SIZE for size in case.world.faults.values()):
        return False
    for cause in case.truth.causes:
        metrics, granularity = EVIDENCE.get(cause, ((), "any"))
        seen = not metrics or any(metric not in case.recorder.missing for metric in metrics)
        if not seen and case.recorder.granularity != granularity:
            return False
    return case.truth.impact >= 0.12


def simulated(kind: str, seed: int, keep: Path | None = None) -> tuple[Case, Bundle, Truth]:
    """Simulate one world, or take it from the folder `keep`."""
    kept = None if keep is None else keep / f"{kind}-{seed}.pickle"
    if kept is not None and kept.exists():
        stored: tuple[Case, Bundle, Truth] = pickle.loads(kept.read_bytes())
        return stored
    case = draw_case(kind, seed)
    bundle, truth = record(case.world, case.recorder)
    if kept is not None:
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_bytes(pickle.dumps((case, bundle, truth)))
    return case, bundle, truth


def examine(kind: str, seed: int, keep: Path | None = None, *, histograms: bool = False) -> tuple[Case, Outcome]:
    """Simulate and diagnose one world, from its requests or from histograms only."""
    case, bundle, truth = simulated(kind, seed, keep)
    if histograms:
        bundle = windows_of(case.world, scraped(case.recorder))
    start = time.process_time()
    diagnosis = diagnose(bundle)
    cpu_s = time.process_time() - start
    return case, Outcome(
        name=f"{kind}-{seed}",
        truth=truth.causes[0] if truth.causes else None,
        identifiable=identifiable(case),
        true_excess_s=truth.excess_mean_s if kind in ("cause", "chronic") else 0.0,
        baseline=not case.recorder.whole,
        diagnosis=diagnosis,
        correlated=most_correlated(bundle),
        cpu_s=cpu_s,
        nodes=truth.nodes[1:] if truth.causes and truth.causes[0] in ON_ONE_DECODE_NODE else (),
    )


def scraped(recorder: Recorder) -> Recorder:
    """Return the recorder of histograms: they count all requests, and Prometheus puts one clock on all of them."""
    return replace(recorder, sampling=1.0, clocks_s=0.0)


def report(results: dict[str, list[tuple[Case, Outcome]]]) -> None:
    """Print the figures of each kind that was looked at, also where nothing in it can be told apart."""
    found = {kind: [outcome for _, outcome in results[kind]] for kind in KINDS}
    for heading, outcomes in (
        ("one cause, with a baseline" if found["cause"] else "nothing injected", found["cause"] + found["none"]),
        ("one cause, without a baseline", found["chronic"]),
    ):
        if outcomes:
            print(f"\n== {heading}: {len(outcomes)}")
            summary(outcomes)
    if found["two"]:
        two = [(case, one) for case, one in results["two"] if one.identifiable]
        both = sum(set(case.truth.causes) <= set(one.ranked[:3]) for case, one in two)
        first = sum(one.ranked[:1] != [] and one.ranked[0] in case.truth.causes for case, one in two)
        print(f"\n== two causes: {len(found['two'])}; identifiable: {len(two)}", end="")
        print(f"; both among the first three: {both}; one of them first: {first}")
    if found["unknown"]:
        unknown = [one.diagnosis.verdict for one in found["unknown"]]
        silent = sum(one.status != "cause" for one in unknown)
        network = sum((one.cause or "").startswith(MACHINE) for one in unknown)
        print(f"\n== a cause outside the list: {len(unknown)}; nothing named: {silent}; network named: {network}")


if __name__ == "__main__":
    raise SystemExit(main())
