"""How often diagnose is right over soft-RoCE: two emulated machines, NIXL over rc_verbs of UCX between them.

    python -m benchmarks.real_transfers_lab [--runs 3] [--kinds loss tcp …] [--seconds 80] [--output FOLDER]

Like benchmarks/real_transfers.py, with the faults made by netem, and TCP in the place of RDMA among them. Needs root
and the packages of tests/lab/packages.txt; a run takes about two minutes.
"""

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.real_transfers import outcome, table
from tests.lab import demo_pair, image, topology
from tests.lab.image import LabError


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3, help="of each kind")
    parser.add_argument("--kinds", nargs="+", choices=list(demo_pair.KINDS), default=list(demo_pair.KINDS))
    parser.add_argument("--seconds", type=float, default=80, help="of arrivals in each run")
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--output", type=Path, help="where recordings and runs.jsonl are kept; a new folder by default")
    arguments = parser.parse_args()
    folder = (arguments.output or Path(tempfile.mkdtemp(prefix="kvdiag-lab-runs-"))).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    print(f"recordings and runs.jsonl in {folder}", file=sys.stderr)
    runs: list[dict[str, Any]] = []
    with topology.pair(image.prepare(), image.logs_folder()) as wire, (folder / "runs.jsonl").open("a") as rows:
        for seed in range(arguments.first_seed, arguments.first_seed + arguments.runs):
            for kind in arguments.kinds:
                runs.append(_run(wire, kind, seed, arguments.seconds, folder))
                rows.write(json.dumps(runs[-1]) + "\n")
                rows.flush()
                print(
                    f"{kind} {seed}: {runs[-1]['cause'] or runs[-1]['status']}: {runs[-1]['reason']}", file=sys.stderr
                )
    for line in table(runs):
        print(line)
    return 0 if all(run["right"] for run in runs) else 1


def _run(wire: topology.Wire, kind: str, seed: int, seconds: float, folder: Path) -> dict[str, Any]:
    bundle = folder / f"{kind}-{seed}"
    about = {"seed": seed, "load_before": os.getloadavg()[0]}
    try:
        recording = demo_pair.record(wire, kind, seed, seconds, bundle)
    except LabError as error:
        return {"kind": kind, "status": "failed", "cause": None, "right": False, "reason": str(error)} | about
    offset_s = None if kind == "none" else recording.fault_offset_s
    return outcome(kind, bundle, offset_s) | about | {"load_after": os.getloadavg()[0]}


if __name__ == "__main__":
    sys.exit(main())
