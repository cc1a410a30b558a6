"""How often diagnose is right over soft-RoCE: two emulated machines, NIXL over rc_verbs of UCX between them.

    python -m benchmarks.real_transfers_lab [--runs 10] [--kinds loss tcp …] [--seconds 36] [--output FOLDER]

Like benchmarks/real_transfers.py, with the faults made by netem, and TCP in the place of RDMA among them. Needs root
and the packages of tests/lab/packages.txt. One workload is served for all runs, one kind after the other, and cut up;
a round of all kinds takes six minutes. `python -m benchmarks.real_transfers --again FOLDER` diagnoses anew.
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
from kvdiag.errors import KvdiagError
from tests.lab import demo_pair, image, topology
from tests.lab.image import LabError


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10, help="of each kind")
    parser.add_argument("--kinds", nargs="+", choices=list(demo_pair.KINDS), default=list(demo_pair.KINDS))
    parser.add_argument("--seconds", type=float, default=36, help="of arrivals for each run")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", type=Path, help="where recordings and runs.jsonl are kept; a new folder by default")
    arguments = parser.parse_args()
    folder = (arguments.output or Path(tempfile.mkdtemp(prefix="kvdiag-lab-runs-"))).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    print(f"recordings and runs.jsonl in {folder}", file=sys.stderr)
    runs: list[dict[str, Any]] = []
    with topology.pair(image.prepare(), image.logs_folder()) as wire, (folder / "runs.jsonl").open("a") as rows:
        for run in _runs(wire, arguments.kinds * arguments.runs, arguments.seed, arguments.seconds, folder):
            rows.write(json.dumps(run) + "\n")
            rows.flush()
            runs.append(run)
            print(f"{run['kind']}: {run['cause'] or run['status']}: {run['reason']}", file=sys.stderr)
    for line in table(runs):
        print(line)
    return 0 if all(run["right"] for run in runs) else 1


def _runs(
    wire: topology.Wire, kinds: Sequence[str], seed: int, seconds: float, folder: Path
) -> Iterator[dict[str, Any]]:
    done = 0
    load_before = os.getloadavg()[0]
    try:
        for part in demo_pair.record(wire, kinds, seed, seconds, folder):
            offset_s = None if part.kind == "none" else part.fault_s - part.begin_s
            about = {"load_before": load_before, "load_after": os.getloadavg()[0]}
            try:
                yield outcome(part.kind, folder / part.name, offset_s) | about
            except KvdiagError as error:
                yield _failed(part.kind, error) | about
            done += 1
            load_before = about["load_after"]
    except LabError as error:
        print(f"after {done} runs: {error}", file=sys.stderr)
        for kind in kinds[done:]:
            yield _failed(kind, error)


def _failed(kind: str, error: Exception) -> dict[str, Any]:
    reason = str(error).splitlines()[-1]
    return {"kind": kind, "status": "failed", "cause": None, "right": False, "reason": reason}


if __name__ == "__main__":
    sys.exit(main())
