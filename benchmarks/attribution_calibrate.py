"""Make kvdiag/attribution/reliability.json: what a raw confidence was worth on freshly simulated clusters.

Usage: python benchmarks/attribution_calibrate.py --worlds N --seed S --held-out M [--keep FOLDER] [--write]
       [--jobs N]

N worlds from seed S on make the table; M further ones show what the confidence stated with it is worth. A verdict is
right where it names an injected cause, or drift of load or prompts that was simulated where nothing was injected.
Prints both tables; --write stores them.
"""

import argparse
import json
import multiprocessing
import sys
from concurrent.futures import ProcessPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import patch

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.attribution_simulated import Case, kind_of, scraped, simulated
from kvdiag.attribution import diagnose, reliability, verdict
from kvdiag.attribution.causes.base import discover
from kvdiag.model.diagnosis import Diagnosis
from tests.attribution.histograms import windows_of

EDGES = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0)
STATED = (0.7, 0.8, 0.9, 1.0)
FILE = Path(reliability.__file__).with_name("reliability.json")
WORKLOAD = {cause.id for cause in discover() if cause.workload}
TABLES = ("fault", "drift", "standing", "windows")
DRIFTS = ("schedule.prefill_queue", "workload.prompt_length")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worlds", type=int, default=800)
    parser.add_argument("--held-out", type=int, default=400)
    parser.add_argument("--seed", type=int, default=20000)
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--jobs", type=int, default=1, help="worlds at a time")
    arguments = parser.parse_args()
    seeds = range(arguments.seed, arguments.seed + arguments.worlds)
    held = range(seeds.stop, seeds.stop + arguments.held_out)
    with patch.object(verdict, "GATE", EDGES[0]), patch.object(reliability, "calibrated", lambda raw, _: raw):
        found = all_verdicts(seeds, seeds.start, arguments.keep, arguments.jobs)
    made = {kind: counts([one[1:] for one in found if one[0] == kind], EDGES) for kind in TABLES}
    stored: dict[str, Any] = {
        "how": f"python benchmarks/attribution_calibrate.py --worlds {arguments.worlds} --seed {arguments.seed} "
        f"--held-out {arguments.held_out} --write",
        "edges": EDGES,
        "kinds": made,
    }
    for kind, one in made.items():
        print(kind, one, [round(worth, 3) for worth in reliability.isotonic(one["right"], one["of"])])
    with patch.object(reliability, "table", lambda: stored):
        further = all_verdicts(held, seeds.start, arguments.keep, arguments.jobs)
    stated = [one[1:] for one in further if one[0] != "windows"]
    stored["stated"] = {"edges": STATED, **counts(stated, STATED)}
    print("stated, further worlds:", stored["stated"])
    if arguments.write:
        FILE.write_text(json.dumps(stored, indent=1) + "\n")
        print(f"{FILE} written")
    return 0


def all_verdicts(seeds: range, first: int, keep: Path | None, jobs: int) -> list[tuple[str, float, bool]]:
    """Return (table, confidence, right) of every verdict that names a cause, from requests and from histograms."""
    if jobs == 1:
        return [one for seed in seeds for one in verdicts(seed, first, keep)]
    # Forked, so that what is patched here is patched there.
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("fork")) as pool:
        worlds = pool.map(verdicts, seeds, [first] * len(seeds), [keep] * len(seeds))
        return [one for world in worlds for one in world]


def verdicts(seed: int, first: int, keep: Path | None) -> list[tuple[str, float, bool]]:
    """Return those of one simulated world; prints the wrong ones."""
    case, bundle, _ = simulated(kind_of(seed - first), seed, keep)
    found = []
    said = diagnose(bundle)
    cause = said.verdict.cause
    if cause is not None:
        table = "drift" if cause in WORKLOAD else "standing" if said.baseline is None else "fault"
        found.append((table, said.verdict.confidence, is_right(case, said)))
        if not found[-1][2]:
            faults = {name: round(size, 2) for name, size in case.world.faults.items()}
            print(f"wrong: {seed} {case.kind} {faults} {case.world.drift}: {cause} {said.verdict.confidence:.2f}")
    means = diagnose(windows_of(case.world, scraped(case.recorder)))
    if means.verdict.cause is not None and means.baseline is not None:
        found.append(("windows", means.verdict.confidence, is_right(case, means)))
    return found


def is_right(case: Case, said: Diagnosis) -> bool:
    """Whether the named cause was injected, or is drift that was simulated and nothing was injected."""
    cause = said.verdict.cause
    if cause in case.world.faults:
        return True
    return not case.world.faults and cause in DRIFTS and case.world.drift[DRIFTS.index(cause)] > 1


def counts(found: list[tuple[float, bool]], edges: tuple[float, ...]) -> dict[str, list[int]]:
    """Return right verdicts and all of them, by bin of confidence; the last bin includes its upper edge."""
    right, of = [0] * (len(edges) - 1), [0] * (len(edges) - 1)
    for confidence, hit in found:
        for index, (low, high) in enumerate(pairwise(edges)):
            if low <= confidence < high or (index == len(of) - 1 and confidence == high):
                right[index] += hit
                of[index] += 1
    return {"right": right, "of": of}


if __name__ == "__main__":
    raise SystemExit(main())
