"""How often diagnose is right on real transfers: `kvdiag demo` again and again, each time with a fault that is known.

    python -m benchmarks.real_transfers [--runs 10] [--kinds link loss …] [--seconds 36] [--at-once 2] [--output FOLDER]
    python -m benchmarks.real_transfers --again FOLDER

Each run records through the exporter and diagnoses the recording, which does not say what was done. The second form
diagnoses the recordings in FOLDER anew. Prints, per kind of fault: runs that were right, runs that blamed the network,
registration, connections or layout where those were innocent, what was said how often and with which confidence, and
the excess of the named cause against what the fault added: the mean TTFT of the requests that came after it began less
that of the requests before, the same mix at the same rate. Every run is a line of FOLDER/runs.jsonl, with the load of
the machine before and after it. Ends with 1 where a kind was right in fewer than nine of ten.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from kvdiag.attribution import diagnose
from kvdiag.sources.bundle import read_bundle
from kvdiag_probes.demo.faults import CAUSES, matches

RIGHT = 0.9
KINDS = [kind for kind in CAUSES if kind != "tcp"]
MACHINE = ("fabric.", "registration.", "connection.", "layout.")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10, help="of each kind")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--seconds", type=float, default=36, help="of arrivals in each run")
    parser.add_argument("--rate", type=float, default=8, help="requests per second")
    parser.add_argument("--at-once", type=int, default=2, help="runs at the same time")
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--output", type=Path, help="where recordings and runs.jsonl are kept; a new folder by default")
    parser.add_argument("--again", type=Path, help="diagnose the recordings of this folder anew instead of running")
    arguments = parser.parse_args()
    if arguments.again is not None:
        runs = [_again(run) for run in read(arguments.again)]
    else:
        folder = (arguments.output or Path(tempfile.mkdtemp(prefix="kvdiag-real-"))).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        print(f"recordings and runs.jsonl in {folder}", file=sys.stderr)
        runs = _all(arguments, folder)
    for line in table(runs):
        print(line)
    return 0 if runs and all(_share_right(runs, kind) >= RIGHT for kind in {run["kind"] for run in runs}) else 1


def read(folder: Path) -> list[dict[str, Any]]:
    """Return the runs of an earlier benchmark, in the order in which they ended."""
    return [json.loads(line) for line in (folder / "runs.jsonl").read_text().splitlines()]


def outcome(kind: str, bundle: Path, fault_offset_s: float | None) -> dict[str, Any]:
    """Return what a diagnosis of the recording says of a run, and what the fault really added (None: not known)."""
    recorded = read_bundle(bundle)
    diagnosis = diagnose(recorded)
    verdict = diagnosis.verdict
    named = next((cause.excess_mean_s for cause in diagnosis.causes if cause.id == verdict.cause), None)
    innocent = verdict.cause != CAUSES[kind] and str(verdict.cause).startswith(MACHINE)
    arrival_s, ttft_s = recorded.requests.number("arrival_s"), recorded.requests.number("ttft_s")
    added = None
    if fault_offset_s is not None and arrival_s is not None and ttft_s is not None:
        after = arrival_s - arrival_s.min() >= fault_offset_s
        if after.any() and not after.all():
            added = float(np.mean(ttft_s[after]) - np.mean(ttft_s[~after]))
    return {
        "kind": kind,
        "right": matches(kind, verdict),
        "wrongly_blamed": innocent,
        "status": verdict.status,
        "cause": verdict.cause,
        "confidence": verdict.confidence,
        "excess_s": named,
        "added_s": added,
        "reason": verdict.reason,
        "requests": len(recorded.requests),
        "fault_offset_s": fault_offset_s,
        "bundle": str(bundle),
    }


def table(runs: Sequence[dict[str, Any]]) -> Iterable[str]:
    """Return one line per kind, and what was said beside it."""
    yield f"{'kind':14}{'right':>8}{'blamed':>8}{'confidence':>12}{'named/added':>13}{'load':>7}  said"
    for kind in dict.fromkeys(run["kind"] for run in runs):
        of_kind = [run for run in runs if run["kind"] == kind]
        done = [run for run in of_kind if run["status"] != "failed"]
        right = [run for run in done if run["right"]]
        ratios = [run["excess_s"] / run["added_s"] for run in right if run["excess_s"] and (run["added_s"] or 0) > 0]
        said = Counter(run["cause"] or run["status"] for run in of_kind)
        yield (
            f"{kind:14}{f'{len(right)}/{len(of_kind)}':>8}{sum(run['wrongly_blamed'] for run in done):>8}"
            f"{_middle([run['confidence'] for run in right]):>12}{_middle(ratios):>13}"
            f"{_middle([run['load_after'] for run in done if 'load_after' in run]):>7}  "
            + ", ".join(f"{what} {count}" for what, count in said.most_common())
        )


def _all(arguments: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    # One run of each kind after the other, so that the machine's moods meet all of them alike.
    wanted = [(kind, arguments.first_seed + number) for number in range(arguments.runs) for kind in arguments.kinds]
    runs = []
    with ThreadPoolExecutor(arguments.at_once) as pool, (folder / "runs.jsonl").open("a") as rows:
        for run in pool.map(lambda one: _run(one[0], one[1], arguments, folder), wanted):
            rows.write(json.dumps(run) + "\n")
            rows.flush()
            runs.append(run)
            print(f"{run['kind']} {run['seed']}: {run['cause'] or run['status']}", file=sys.stderr)
    return runs


def _run(kind: str, seed: int, arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    load_before = os.getloadavg()[0]
    line = [sys.executable, "-m", "kvdiag", "demo", "--fault", kind, "--seed", str(seed), "--format", "json"]
    line += ["--duration", str(arguments.seconds), "--rate", str(arguments.rate)]
    line += ["--output", str(folder / f"{kind}-{seed}")]
    done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=arguments.seconds + 150)
    about = {"seed": seed, "load_before": load_before, "load_after": os.getloadavg()[0]}
    try:
        document = json.loads(done.stdout)
    except ValueError:
        reason = (done.stderr.strip().splitlines() or ["no output"])[-1]
        return {"kind": kind, "status": "failed", "cause": None, "right": False, "reason": reason} | about
    return outcome(kind, Path(document["bundle"]), document["fault_offset_s"]) | about


def _again(run: dict[str, Any]) -> dict[str, Any]:
    return run if run["status"] == "failed" else run | outcome(run["kind"], Path(run["bundle"]), run["fault_offset_s"])


def _share_right(runs: Sequence[dict[str, Any]], kind: str) -> float:
    return statistics.fmean(run["right"] for run in runs if run["kind"] == kind)


def _middle(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.2f}" if values else "-"


if __name__ == "__main__":
    sys.exit(main())
