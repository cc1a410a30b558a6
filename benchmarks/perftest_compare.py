"""Compares `kvdiag probe` with perftest between the same two devices, by turns in one run.

Bandwidth and message rate are WRITE and READ of four sizes; both programs have 128 messages outstanding and post and
complete them in chains of the same length (perftest's -l and -Q). READ latency is from post to completion in both;
WRITE latency is the one-way time of a ping-pong over polled memory in both. The last rows are kvdiag alone, with and
without recording each completion; benchmarks.post_cost adds what a posted request costs above the provider.

    python -m benchmarks.perftest_compare [--rounds N] [--counted] [--rows TEXT]

Run as root from the repository. It boots the lab's two machines; their rates are those of an emulated CPU and swing
with the host's load, so the ratios are what counts. With --counted it boots one machine with both devices, whose clock
counts executed instructions instead (1 ns each): the same on every host and under any load.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Literal

from kvdiag_probes.datapath import chain_length
from kvdiag_probes.sizes import format_size
from tests.lab import image, probing, topology
from tests.lab.process import Process
from tests.lab.topology import Wire

MIB = 1 << 20
TARGETS = {64: 0.90, 4 << 10: 0.97, 64 << 10: 0.97, 1 << 20: 0.97}
LATENCY_TARGET = 1.10
RECORDING_TARGET = 0.97
QUEUE_DEPTH = 128
# Enough bytes that start-up and drain are a small part of each run; perftest wants whole chains.
MESSAGES = {64: 8192, 4 << 10: 4096, 64 << 10: 512, 1 << 20: 48}
LATENCY_MESSAGES = {64: 500, 4 << 10: 500, 64 << 10: 200}
_LIMIT_S = 300.0
Kind = Literal["bandwidth", "latency", "recording"]


@dataclass(slots=True)
class Row:
    """One operation and size: what each program got, a round each, in MiB/s, or in microseconds (median) for latency.

    `recording` rows compare kvdiag with itself when it records nothing.
    """

    kind: Kind
    operation: str
    size: int
    reference: list[float] = field(default_factory=list)
    kvdiag: list[float] = field(default_factory=list)

    @property
    def name(self) -> str:
        """Operation, kind and size, as the table shows them."""
        return f"{self.operation} {self.kind} {format_size(self.size)}"

    @property
    def target(self) -> float:
        """The bound of the ratio: the least, or for latency the most."""
        return {"latency": LATENCY_TARGET, "recording": RECORDING_TARGET}.get(self.kind, TARGETS[self.size])

    @property
    def bound(self) -> str:
        """Which side of the target is right."""
        return "<=" if self.kind == "latency" else ">="

    @property
    def ratio(self) -> float:
        """Best of kvdiag's results over the best of the other's: what disturbs a round only ever makes it worse."""
        best = min if self.kind == "latency" else max
        return best(self.kvdiag) / best(self.reference)

    @property
    def ratio_of_medians(self) -> float:
        """Median of kvdiag's results over the median of the other's: what to look at on a quiet machine."""
        return statistics.median(self.kvdiag) / statistics.median(self.reference)

    @property
    def met(self) -> bool:
        """Whether the ratio keeps to its bound."""
        return self.ratio <= self.target if self.kind == "latency" else self.ratio >= self.target


def all_rows(*, ping_pong: bool = True) -> list[Row]:
    """Return an empty row for every kind, operation and size; a ping-pong needs a processor at each end."""
    rates = [Row("bandwidth", operation, size) for operation in ("write", "read") for size in MESSAGES]
    times = [
        Row("latency", operation, size)
        for operation in ("write", "read")
        for size in LATENCY_MESSAGES
        if ping_pong or operation != "write"
    ]
    return rates + times + [Row("recording", "write", 64), Row("recording", "write", 4 << 10)]


def compare(wire: Wire, rows: Sequence[Row], rounds: int) -> None:
    """Add `rounds` rounds to every row, both contenders by turns and in changing order."""
    with probing.agent(wire.b, "--idle 600"), repeater(wire) as prober:
        for number in range(rounds):
            for row in rows:
                runs = [
                    lambda row=row: row.reference.append(run_reference(wire, prober, row)),
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


def run_reference(wire: Wire, prober: Process, row: Row) -> float:
    """Return what kvdiag is held against: perftest's figure, or its own without recording."""
    return run_kvdiag(wire, prober, row, "unrecorded ") if row.kind == "recording" else run_perftest(wire, row)


def run_perftest(wire: Wire, row: Row) -> float:
    """Return the average rate in MiB/s (perftest's "MB" are 2^20 bytes), or the median latency in microseconds."""
    count = str((LATENCY_MESSAGES if row.kind == "latency" else MESSAGES)[row.size])
    if row.kind == "bandwidth":
        chain = chain_length(row.size, QUEUE_DEPTH)
        line = f"ib_{row.operation}_bw -F -m 4096 -t {QUEUE_DEPTH} -l {chain} -Q {chain} -s {row.size} -n {count}"
    else:
        inline = "-I 0" if row.operation == "write" else ""
        line = f"ib_{row.operation}_lat -F -m 4096 {inline} -s {row.size} -n {count}"
    server = wire.b.machine.spawn(f"{line} -d {wire.b.device} -x {wire.b.gid_index()}")
    wire.b.machine.run("until ss -Hltn sport = 18515 | grep -q .; do sleep 0.1; done", 30, check=True)
    client = f"{line} -d {wire.a.device} -x {wire.a.gid_index()} {wire.b.address}"
    output = wire.a.machine.run(client, _LIMIT_S, check=True).stdout
    server.wait(30)
    (words,) = [words for words in map(str.split, output.splitlines()) if words[:2] == [str(row.size), count]]
    # "#bytes #iterations BW_peak BW_average MsgRate[Mpps]", "#bytes #iterations t_min t_max t_typical …"
    if row.kind == "latency":
        return float(words[4])
    # Of small messages the rate has more digits, of large ones the bandwidth.
    return float(words[4]) * 1e6 * row.size / MIB if row.size <= 4 << 10 else float(words[3])


def run_kvdiag(wire: Wire, prober: Process, row: Row, prefix: str = "") -> float:
    """Return the average rate in MiB/s or the median latency in microseconds, every payload verified."""
    answered = prober.stdout.count(b"\n")
    latency = row.kind == "latency"
    count = (LATENCY_MESSAGES if latency else MESSAGES)[row.size]
    extra = f"--queue-depth {QUEUE_DEPTH}"
    if latency:
        extra = "--ping-pong" if row.operation == "write" else ""
    line = (
        f"{prefix}{'latency' if latency else 'bandwidth'} {wire.b.address}:{probing.PORT} --device {wire.a.device} "
        f"--op {row.operation} --size {row.size} --iterations {count} {extra} --timeout 60 --format json\n"
    )
    prober.write(line.encode())
    prober.wait_for(rf"\A(?:.*\n){{{answered + 1}}}", _LIMIT_S)
    answer = json.loads(prober.stdout.splitlines()[answered])
    if answer["rc"]:
        raise RuntimeError(answer["stderr"])
    (result,) = json.loads(answer["stdout"])["results"]
    return float(result["latency_s"]["p50"]) * 1e6 if latency else float(result["bytes_per_second"]) / MIB


def table(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the lines of a table: medians and ranges in MiB/s or µs, best message rates, and both ratios."""
    yield (
        f"{'probe':<15} {'size':>6}  {'perftest':>27} {'kvdiag':>27} {'':>5} {'messages/s of each':>19} "
        f"{'best/best':>9} {'medians':>7} {'target':>7}"
    )
    for row in rows:
        rates = ""
        if row.kind != "latency":
            rates = " | ".join(f"{max(found) * MIB / row.size:.0f}" for found in (row.reference, row.kvdiag))
        yield (
            f"{row.operation + ' ' + row.kind:<15} {format_size(row.size):>6}  {_spread(row.reference):>27} "
            f"{_spread(row.kvdiag):>27} {'µs' if row.kind == 'latency' else 'MiB/s':>5} {rates:>19} "
            f"{row.ratio:>9.3f} {row.ratio_of_medians:>7.3f} {row.bound} {row.target:.2f} "
            f"{'met' if row.met else 'MISSED'}"
        )
    if any(row.kind == "recording" for row in rows):
        yield "(recording: kvdiag without recording, in perftest's column, against kvdiag with it)"


def _spread(found: Sequence[float]) -> str:
    return f"{statistics.median(found):.2f} ({min(found):.2f} to {max(found):.2f})"


def post_cost() -> bool:
    """Run benchmarks.post_cost where there is a compiler; return False where a limit was missed."""
    print("\nUser-space cost of a posted request (benchmarks.post_cost):", flush=True)
    header = Path(os.environ.get("KVDIAG_VERBS_INCLUDE", "/usr/include")) / "infiniband/verbs.h"
    if shutil.which("gcc") is None or not header.exists():
        print("not measured: needs gcc and libibverbs-dev")
        return True
    return subprocess.run([sys.executable, "-m", "benchmarks.post_cost"], check=False).returncode == 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="how often each program runs each row")
    parser.add_argument("--counted", action="store_true", help="one machine whose clock counts instructions")
    parser.add_argument(
        "--rows", default="", help="only those whose name in the table, `read latency 4KiB`, contains this"
    )
    given = parser.parse_args()
    rows = [row for row in all_rows(ping_pong=not given.counted) if given.rows in row.name]
    if not rows:
        parser.error(f"--rows {given.rows!r}: no row's name contains it")
    boot = partial(topology.node, counted=True) if given.counted else topology.pair
    bed = "one machine, counted instructions" if given.counted else "two machines"
    print(f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC, soft-RoCE, {bed}, {given.rounds} rounds by turns", flush=True)
    with boot(image.prepare(), image.logs_folder()) as wire:
        try:
            compare(wire, rows, given.rounds)
        finally:
            print("\n".join(table([row for row in rows if row.reference and row.kvdiag])), flush=True)
    cheap = post_cost()
    return 0 if cheap and all(row.met for row in rows) else 2


if __name__ == "__main__":
    sys.exit(main())
