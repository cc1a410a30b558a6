"""How often diagnose is right over soft-RoCE: two emulated machines, NIXL over rc_verbs of UCX between them.

    python -m benchmarks.real_transfers_lab [--runs 3] [--kinds loss tcp …] [--seconds 200] [--output FOLDER]

Like benchmarks/real_transfers.py, with the faults made by netem, and TCP in the place of RDMA among them. Needs root
and the packages of tests/lab/packages.txt. One workload is served for all kinds, one after the other, and cut up.
"""

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.real_transfers import outcome, table
from tests.lab import demo_pair, image, topology
from tests.lab.image import LabError


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3, help="of each kind")
    parser.add_argument("--kinds", nargs="+", choices=list(demo_pair.KINDS), default=list(demo_pair.KINDS))
    parser.add_argument("--seconds", type=float, default=200, help="of arrivals for each kind")
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--output", type=Path, help="where recordings and runs.jsonl are kept; a new folder by default")
    arguments = parser.parse_args()
    folder = (arguments.output or Path(tempfile.mkdtemp(prefix="kvdiag-lab-runs-"))).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    print(f"recordings and runs.jsonl in {folder}", file=sys.stderr)
    runs: list[dict[str, Any]] = []
    with topology.pair(image.prepare(), image.logs_folder()) as wire, (folder / "runs.jsonl").open("a") as rows:
        for seed in range(arguments.first_seed, arguments.first_seed + arguments.runs):
            for run in _round(wire, arguments.kinds, seed, arguments.seconds, folder / str(seed)):
                rows.write(json.dumps(run) + "\n")
                rows.flush()
                runs.append(run)
                print(f"{run['kind']} {seed}: {run['cause'] or run['status']}: {run['reason']}", file=sys.stderr)
    for line in table(runs):
        print(line)
    return 0 if all(run["right"] for run in runs) else 1


def _round(
    wire: topology.Wire, kinds: Sequence[str], seed: int, seconds: float, folder: Path
) -> Iterator[dict[str, Any]]:
    about = {"seed": seed, "load_before": os.getloadavg()[0]}
    try:
        parts = demo_pair.record(wire, kinds, seed, seconds, folder)
    except LabError as error:
        for kind in kinds:
            yield {"kind": kind, "status": "failed", "cause": None, "right": False, "reason": str(error)} | about
        return
    about["load_after"] = os.getloadavg()[0]
    for part in parts:
        offset_s = None if part.kind == "none" else part.fault_s - part.begin_s
        yield outcome(part.kind, folder / part.kind, offset_s) | about


if __name__ == "__main__":
    sys.exit(main())
