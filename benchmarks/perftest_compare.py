"""Compares `kvdiag probe bandwidth` with perftest in one pair of machines, in interleaved rounds.

Run as root from the repository: python -m benchmarks.perftest_compare [ROUNDS]. It boots the lab's two machines.
Absolute rates are those of an emulated CPU and swing with the host's load; the ratios are what counts.
"""

import json
import statistics
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from kvdiag_probes.sizes import format_size
from tests.lab import image, probing, topology
from tests.lab.process import Process
from tests.lab.topology import Wire

MIB = 1 << 20
TARGET = 0.9
# Enough bytes that start-up and drain are a small part of each run.
MESSAGES = {64 << 10: 512, 1 << 20: 48}
_LIMIT_S = 120.0


@dataclass(slots=True)
class Row:
    """Rates of one operation and size in MiB/s, one of each program for every round."""

    operation: str
    size: int
    perftest: list[float] = field(default_factory=list)
    kvdiag: list[float] = field(default_factory=list)

    @property
    def ratio(self) -> float:
        """Best of kvdiag's rates over the best of perftest's: what disturbs a round only ever slows it down."""
        return max(self.kvdiag) / max(self.perftest)

    @property
    def ratio_of_medians(self) -> float:
        """Median of kvdiag's rates over the median of perftest's: what to look at on a quiet machine."""
        return statistics.median(self.kvdiag) / statistics.median(self.perftest)


def all_rows() -> list[Row]:
    """Return an empty row for every operation and size."""
    return [Row(operation, size) for operation in ("write", "read") for size in MESSAGES]


def compare(wire: Wire, rows: Sequence[Row], rounds: int) -> None:
    """Add `rounds` rounds to every row, perftest and kvdiag by turns and in changing order."""
    with probing.agent(wire.b, "--idle 600"), repeater(wire) as prober:
        for number in range(rounds):
            for row in rows:
                runs = [
                    lambda row=row: row.perftest.append(run_perftest(wire, row.operation, row.size)),
                    lambda row=row: row.kvdiag.append(run_kvdiag(wire, prober, row.operation, row.size)),
                ]
                for run in runs if number % 2 == 0 else reversed(runs):
                    run()


@contextmanager
def repeater(wire: Wire) -> Iterator[Process]:
    """Run benchmarks.repeat_probe at the near end."""
    process = wire.a.machine.spawn(
        [sys.executable, "-m", "benchmarks.repeat_probe"], environment=probing.ENVIRONMENT, stdin=True
    )
    try:
        yield process
    finally:
        process.kill()


def run_perftest(wire: Wire, operation: str, size: int) -> float:
    """Return the average rate in MiB/s that ib_write_bw or ib_read_bw reports (its "MB" are 2^20 bytes)."""
    count = str(MESSAGES[size])
    line = f"ib_{operation}_bw -F -m 4096 -s {size} -n {count}"
    server = wire.b.machine.spawn(f"{line} -d {wire.b.device} -x {wire.b.gid_index()}")
    wire.b.machine.run("until ss -Hltn sport = 18515 | grep -q .; do sleep 0.1; done", 30, check=True)
    client = f"{line} -d {wire.a.device} -x {wire.a.gid_index()} {wire.b.address}"
    output = wire.a.machine.run(client, _LIMIT_S, check=True).stdout
    server.wait(30)
    (row,) = [words for words in map(str.split, output.splitlines()) if words[:2] == [str(size), count]]
    return float(row[3])


def run_kvdiag(wire: Wire, prober: Process, operation: str, size: int) -> float:
    """Return the average rate in MiB/s that kvdiag probe reports, every payload verified."""
    answered = prober.stdout.count(b"\n")
    line = (
        f"bandwidth {wire.b.address}:{probing.PORT} --device {wire.a.device} --op {operation} --size {size} "
        f"--iterations {MESSAGES[size]} --format json\n"
    )
    prober.write(line.encode())
    prober.wait_for(rf"\A(?:.*\n){{{answered + 1}}}", _LIMIT_S)
    answer = json.loads(prober.stdout.splitlines()[answered])
    if answer["rc"]:
        raise RuntimeError(answer["stderr"])
    (row,) = json.loads(answer["stdout"])["results"]
    return float(row["bytes_per_second"]) / MIB


def table(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the lines of a table: medians and ranges in MiB/s, and both ratios."""
    yield f"{'op':<6} {'size':>6} {'perftest MiB/s':>24} {'kvdiag MiB/s':>24} {'best/best':>9} {'medians':>7}"
    for row in rows:
        yield (
            f"{row.operation:<6} {format_size(row.size):>6} {_spread(row.perftest):>24} {_spread(row.kvdiag):>24} "
            f"{row.ratio:>9.2f} {row.ratio_of_medians:>7.2f}"
        )


def _spread(rates: Sequence[float]) -> str:
    return f"{statistics.median(rates):.1f} ({min(rates):.1f} to {max(rates):.1f})"


def main() -> int:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 9
    rows = all_rows()
    with topology.pair(image.prepare(), image.logs_folder()) as wire:
        compare(wire, rows, rounds)
    print("\n".join(table(rows)))
    return 0 if all(row.ratio >= TARGET for row in rows) else 2


if __name__ == "__main__":
    sys.exit(main())
