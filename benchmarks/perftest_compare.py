"""Compares `kvdiag probe` with perftest in one pair of machines, in interleaved rounds.

Bandwidth is WRITE and READ of four sizes, both programs with 128 messages outstanding. Latency is READ alone, from
post to completion in both: ib_write_lat times a ping-pong over polled memory, which is another thing.

Run as root from the repository: python -m benchmarks.perftest_compare [ROUNDS]. It boots the lab's two machines.
Absolute rates are those of an emulated CPU and swing with the host's load; the ratios are what counts.
"""

import json
import statistics
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

from kvdiag_probes.sizes import format_size
from tests.lab import image, probing, topology
from tests.lab.process import Process
from tests.lab.topology import Wire

MIB = 1 << 20
TARGETS = {64: 0.90, 4 << 10: 0.97, 64 << 10: 0.97, 1 << 20: 0.97}
LATENCY_TARGET = 1 / 1.10
QUEUE_DEPTH = 128
# Enough bytes that start-up and drain are a small part of each run.
MESSAGES = {64: 8192, 4 << 10: 4096, 64 << 10: 512, 1 << 20: 48}
LATENCY_MESSAGES = {64: 500, 4 << 10: 500, 64 << 10: 200}
_LIMIT_S = 300.0


@dataclass(slots=True)
class Row:
    """One operation and size: rates in MiB/s or median latencies in microseconds, one of each program a round."""

    kind: Literal["bandwidth", "latency"]
    operation: str
    size: int
    perftest: list[float] = field(default_factory=list)
    kvdiag: list[float] = field(default_factory=list)

    @property
    def target(self) -> float:
        """The least ratio that counts as equal."""
        return TARGETS[self.size] if self.kind == "bandwidth" else LATENCY_TARGET

    @property
    def ratio(self) -> float:
        """Best of kvdiag's results over the best of perftest's: what disturbs a round only ever makes it worse."""
        if self.kind == "latency":
            return min(self.perftest) / min(self.kvdiag)
        return max(self.kvdiag) / max(self.perftest)

    @property
    def ratio_of_medians(self) -> float:
        """Median of kvdiag's results over the median of perftest's: what to look at on a quiet machine."""
        ratio = statistics.median(self.kvdiag) / statistics.median(self.perftest)
        return 1 / ratio if self.kind == "latency" else ratio


def all_rows() -> list[Row]:
    """Return an empty row for every kind, operation and size."""
    rates = [Row("bandwidth", operation, size) for operation in ("write", "read") for size in MESSAGES]
    return rates + [Row("latency", "read", size) for size in LATENCY_MESSAGES]


def compare(wire: Wire, rows: Sequence[Row], rounds: int) -> None:
    """Add `rounds` rounds to every row, perftest and kvdiag by turns and in changing order."""
    with probing.agent(wire.b, "--idle 600"), repeater(wire) as prober:
        for number in range(rounds):
            for row in rows:
                runs = [
                    lambda row=row: row.perftest.append(run_perftest(wire, row)),
                    lambda row=row: row.kvdiag.append(run_kvdiag(wire, prober, row)),
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


def run_perftest(wire: Wire, row: Row) -> float:
    """Return the average rate in MiB/s (perftest's "MB" are 2^20 bytes), or the median latency in microseconds."""
    count = str((MESSAGES if row.kind == "bandwidth" else LATENCY_MESSAGES)[row.size])
    if row.kind == "bandwidth":
        line = f"ib_{row.operation}_bw -F -m 4096 -t {QUEUE_DEPTH} -s {row.size} -n {count}"
    else:
        line = f"ib_{row.operation}_lat -F -m 4096 -s {row.size} -n {count}"
    server = wire.b.machine.spawn(f"{line} -d {wire.b.device} -x {wire.b.gid_index()}")
    wire.b.machine.run("until ss -Hltn sport = 18515 | grep -q .; do sleep 0.1; done", 30, check=True)
    client = f"{line} -d {wire.a.device} -x {wire.a.gid_index()} {wire.b.address}"
    output = wire.a.machine.run(client, _LIMIT_S, check=True).stdout
    server.wait(30)
    (words,) = [words for words in map(str.split, output.splitlines()) if words[:2] == [str(row.size), count]]
    # "#bytes #iterations BW_peak BW_average MsgRate", "#bytes #iterations t_min t_max t_typical …"
    return float(words[3] if row.kind == "bandwidth" else words[4])


def run_kvdiag(wire: Wire, prober: Process, row: Row) -> float:
    """Return the average rate in MiB/s or the median latency in microseconds, every payload verified."""
    answered = prober.stdout.count(b"\n")
    count = (MESSAGES if row.kind == "bandwidth" else LATENCY_MESSAGES)[row.size]
    depth = f"--queue-depth {QUEUE_DEPTH}" if row.kind == "bandwidth" else ""
    line = (
        f"{row.kind} {wire.b.address}:{probing.PORT} --device {wire.a.device} --op {row.operation} --size {row.size} "
        f"--iterations {count} {depth} --timeout 60 --format json\n"
    )
    prober.write(line.encode())
    prober.wait_for(rf"\A(?:.*\n){{{answered + 1}}}", _LIMIT_S)
    answer = json.loads(prober.stdout.splitlines()[answered])
    if answer["rc"]:
        raise RuntimeError(answer["stderr"])
    (result,) = json.loads(answer["stdout"])["results"]
    if row.kind == "latency":
        return float(result["latency_s"]["p50"]) * 1e6
    return float(result["bytes_per_second"]) / MIB


def table(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the lines of a table: medians and ranges in MiB/s or µs, and both ratios (above 1: kvdiag is better)."""
    yield f"{'probe':<15} {'size':>6} {'perftest':>30} {'kvdiag':>30} {'best/best':>9} {'medians':>7} {'target':>6}"
    for row in rows:
        yield (
            f"{row.operation + ' ' + row.kind:<15} {format_size(row.size):>6} {_spread(row.perftest):>30} "
            f"{_spread(row.kvdiag):>30} {row.ratio:>9.2f} {row.ratio_of_medians:>7.2f} {row.target:>6.2f}"
        )


def _spread(rates: Sequence[float]) -> str:
    return f"{statistics.median(rates):.1f} ({min(rates):.1f} to {max(rates):.1f})"


def main() -> int:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 9
    rows = all_rows()
    with topology.pair(image.prepare(), image.logs_folder()) as wire:
        compare(wire, rows, rounds)
    print("\n".join(table(rows)))
    return 0 if all(row.ratio >= row.target for row in rows) else 2


if __name__ == "__main__":
    sys.exit(main())
