"""The exporter under injected faults: python -m benchmarks.exporter_chaos --seconds 180 --seed 1 [--keep FOLDER].

Everything that it watches vanishes, turns binary, starts again, hangs; disks fill, the clock steps, clients stall,
crowd and attack. Every scrape is judged by what is true of the sources at that moment. Exit code 1 where anything was
wrong.
"""

import argparse
import sys
import tempfile
from pathlib import Path

from tests.exporters.chaos import faults
from tests.exporters.chaos.harness import Harness, Result, Size


def main() -> int:
    """Run and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=180.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--at-once", type=int, default=3, help="faults at a time, at most")
    parser.add_argument("--only", default="", help="draw only faults whose name holds this")
    parser.add_argument("--keep", type=Path, help="an empty folder for the world, kept afterwards")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        chosen = [one for one in faults.ALL if options.only in faults.name_of(one)]
        result = Harness(folder.resolve(), options.seed, chosen).run(options.seconds, options.at_once)
    print(report(result))
    return 1 if result.complaints else 0


def report(result: Result) -> str:
    """Return the result as text."""
    drawn = ", ".join(f"{name} {count}" for name, count in sorted(result.drawn.items()))
    sizes = {"at first": result.before, "half-way": result.half, "at most": result.most, "at rest": result.after}
    lines = [
        f"seed {result.seed}: {sum(result.drawn.values())} faults, {result.scrapes} scrapes judged, the slowest "
        f"{result.slowest_s:.2f} s",
        f"  faults: {drawn}",
        f"  {result.records}",
        "  " + "; ".join(f"{when} {_size(size)}" for when, size in sizes.items()),
    ]
    lines += [f"  WRONG {kind}: {text}" for kind, text in result.complaints.items()]
    return "\n".join(lines)


def _size(size: Size | None) -> str:
    return "?" if size is None else f"{size.resident_bytes >> 20} MiB, {size.files} files, {size.threads} threads"


if __name__ == "__main__":
    sys.exit(main())
