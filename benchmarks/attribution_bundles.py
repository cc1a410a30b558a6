"""How often diagnose is right on trace bundles whose injected causes are known (truth.json beside the requests).

Usage: python benchmarks/attribution_bundles.py FOLDER [--chronic]

Prints one line per bundle and then, over bundles with a baseline and (--chronic) without: the injected cause first and
among the first three, verdicts said and right, false claims where nothing was injected, size of the excess against the
truth, what stated confidence was worth, processor time; and beside it what ranking counters by their correlation with
TTFT would name.
"""

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kvdiag.attribution import diagnose
from kvdiag.attribution.frame import build_frame
from kvdiag.derive.stages import stage_matrix
from kvdiag.model.bundle import Bundle
from kvdiag.model.diagnosis import Diagnosis
from kvdiag.sources.bundle import read_bundle

MACHINE = ("fabric.", "registration.", "connection.")
CAUSE_OF_METRIC = {
    "nic.cnp": "fabric.congestion",
    "nic.ecn_marked": "fabric.congestion",
    "nic.pause_us": "fabric.congestion",
    "nic.out_of_sequence": "fabric.loss",
    "nic.retransmits": "fabric.loss",
    "nic.ack_timeouts": "fabric.loss",
    "nic.link_gbps": "fabric.link_degraded",
    "nic.symbol_errors": "fabric.link_degraded",
    "host.tcp_rx_bytes": "fabric.tcp_fallback",
    "reg.mr_registered": "registration.on_path",
    "reg.mr_register_us": "registration.on_path",
    "reg.cache_misses": "registration.cache_miss",
    "conn.qp_created": "connection.setup",
    "conn.handle_alloc_failures": "connection.exhaustion",
    "engine.prefill_queue_depth": "schedule.prefill_queue",
    "engine.arrivals": "schedule.prefill_queue",
    "engine.admit_queue_depth": "schedule.decode_admission",
    "engine.pull_queue_depth": "schedule.serial_pull",
    "engine.prefill_batch_tokens": "workload.prefill_batch",
}


@dataclass(frozen=True)
class Outcome:
    name: str
    truth: str | None
    identifiable: bool
    true_excess_s: float
    baseline: bool
    diagnosis: Diagnosis
    correlated: str | None
    cpu_s: float
    nodes: tuple[str, ...] = ()

    @property
    def ranked(self) -> list[str]:
        return [cause.id for cause in self.diagnosis.causes if cause.id != "unexplained"]

    @property
    def excess_s(self) -> float | None:
        return next((cause.excess_mean_s for cause in self.diagnosis.causes if cause.id == self.truth), None)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--chronic", action="store_true", help="also bundles without an announced start")
    arguments = parser.parse_args()
    outcomes = []
    for path in sorted(truth.parent for truth in arguments.folder.glob("*/truth.json")):
        bundle = read_bundle(path)
        if bundle.incident_start_s is None and not arguments.chronic:
            continue
        outcomes.append(run(path, bundle))
        one = outcomes[-1]
        said = one.diagnosis.verdict
        print(f"{one.name}: {said.status} {said.cause or '-'} ({said.confidence:.2f}); first {one.ranked[:1]}")
    for heading, chosen in (
        ("with a baseline", [one for one in outcomes if one.baseline]),
        ("without a baseline (chronic)", [one for one in outcomes if not one.baseline]),
    ):
        if chosen:
            print(f"\n== {heading}")
            summary(chosen)
    return 0


def run(path: Path, bundle: Bundle) -> Outcome:
    """Diagnose one bundle."""
    causes = json.loads((path / "truth.json").read_text())["causes"]
    start = time.process_time()
    diagnosis = diagnose(bundle)
    cpu_s = time.process_time() - start
    truth = causes[0] if causes else None
    return Outcome(
        name=path.name,
        truth=truth["id"] if truth else None,
        identifiable=bool(truth["identifiable"]) if truth else True,
        true_excess_s=float(truth["excess_mean_s"]) if truth else 0.0,
        baseline=bundle.incident_start_s is not None,
        diagnosis=diagnosis,
        correlated=most_correlated(bundle),
        cpu_s=cpu_s,
        nodes=tuple(truth["nodes"]) if truth else (),
    )


def most_correlated(bundle: Bundle) -> str | None:
    """Return the cause that the metric with the largest |Pearson r| against TTFT stands for (best node per metric)."""
    frame = build_frame(bundle, stage_matrix(bundle.requests), -np.inf)
    start, stop = frame.kv_window()
    best: tuple[float, str | None] = (0.0, None)
    for metric, cause in CAUSE_OF_METRIC.items():
        for node in frame.counters.nodes(metric):
            values = frame.counters.mean(metric, node, start - 2, stop + 2)
            known = np.isfinite(values)
            if known.sum() > 30 and values[known].std() > 0:
                r = abs(float(np.corrcoef(values[known], frame.stages.ttft_s[known])[0, 1]))
                best = max(best, (r, cause), key=lambda one: one[0])
    return best[1]


def summary(outcomes: Sequence[Outcome]) -> None:
    """Print the figures."""
    faults = [one for one in outcomes if one.truth is not None and one.identifiable]
    quiet = [one for one in outcomes if one.truth is None]
    said = [one for one in faults if one.diagnosis.verdict.status == "cause"]
    right = [one for one in said if one.diagnosis.verdict.cause == one.truth]
    sizes = [abs(one.excess_s / one.true_excess_s - 1) for one in faults if one.excess_s is not None]
    claims = [one for one in quiet if (one.diagnosis.verdict.cause or "").startswith(MACHINE)]
    print(f"\nidentifiable faults: {len(faults)}")
    print(f"  injected cause first: {_share(sum(one.ranked[:1] == [one.truth] for one in faults), len(faults))}")
    print(f"  among the first three: {_share(sum(one.truth in one.ranked[:3] for one in faults), len(faults))}")
    print(f"  said: {_share(len(said), len(faults))}, right when said: {_share(len(right), len(said))}")
    guilty = [one for one in faults if _machine(one.truth) == _machine(one.diagnosis.verdict.cause)]
    print(f"  fabric, registration or connection against the rest: {_share(len(guilty), len(faults))}")
    listed = [one for one in faults if _machine(one.truth) == _machine(next(iter(one.ranked), None))]
    print(f"  the same, by what the list begins with (a verdict may abstain): {_share(len(listed), len(faults))}")
    print(f"  relative error of the excess, median: {f'{np.median(sizes):.0%}' if sizes else 'none sized'}")
    first = [one for one in faults if one.ranked[:1] == [one.truth] and one.nodes]
    placed = [one for one in first if one.diagnosis.causes[0].nodes and _on(one)]
    print(f"  of those first that sit on some nodes, only such named: {_share(len(placed), len(first))}")
    correlated = sum(one.correlated == one.truth for one in faults)
    print(f"  by correlation of counters with TTFT, first: {_share(correlated, len(faults))}")
    print(f"nothing injected: {len(quiet)}; fabric, registration or connection claimed: {len(claims)}")
    for low, high in ((0.7, 0.8), (0.8, 0.9), (0.9, 1.0)):
        stated = [one for one in said if low <= one.diagnosis.verdict.confidence < high]
        print(f"  confidence {low:.1f} to {high:.1f}: right {_share(sum(o in right for o in stated), len(stated))}")
    print(
        f"processor seconds per bundle: median {np.median([o.cpu_s for o in outcomes]):.2f}, "
        f"largest {max(o.cpu_s for o in outcomes):.2f}"
    )


def _on(one: Outcome) -> bool:
    return set(one.diagnosis.causes[0].nodes) <= set(one.nodes)


def _machine(cause: str | None) -> bool:
    return (cause or "").startswith(MACHINE)


def _share(part: int, whole: int) -> str:
    return f"{part}/{whole}" + (f" ({part / whole:.0%})" if whole else "")


if __name__ == "__main__":
    raise SystemExit(main())
