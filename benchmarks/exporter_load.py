"""Scrapes under load: python -m benchmarks.exporter_load [--records 10000] [--queue-pairs 2000] [--seconds 20].

A real exporter process watches a host with 8 RDMA ports and so many queue pairs, and takes spans over OTLP from two
senders at so many records a second; a record is one span, three of which make a request with its transfer. It is
scraped four times a second, each time anew. `--search` raises the rate until something is refused.
"""

import argparse
import http.client
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from benchmarks.record_joining import BATCH, export
from tests.exporters.chaos.engine import get
from tests.exporters.chaos.oracle import parse
from tests.exporters.records.configuration import configuration

ROOT = Path(__file__).parents[1]
SENDERS = 2
RECORDS = BATCH // 3 * 3
"""Of one export."""
ACCEPT = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,"
    "application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=0.0.4;q=0.3,*/*;q=0.1"
)
"""As Prometheus 3 sends it."""
COUNTERS = 80
PORTS = 8
_CONFIG = configuration(interval_s=0.2, top='address_file = "address"\nroot = "root"\n')


@dataclass
class Load:
    """One run: records by what became of them, the times of scrapes, and what the exporter used meanwhile."""

    offered: int
    seconds: float
    read: float
    refused: float
    lost: float
    scrapes_s: list[float]
    cpu_s: float
    resident_bytes: float

    def scrape_ms(self, share: float) -> float:
        """Return a quantile of the scrapes' times."""
        ordered = sorted(self.scrapes_s)
        return ordered[min(len(ordered) - 1, int(len(ordered) * share))] * 1e3

    def line(self) -> str:
        return (
            f"offered {self.offered / self.seconds:6.0f}/s, read {self.read / self.seconds:6.0f}/s, refused "
            f"{self.refused:.0f}, lost after acceptance {self.lost:.0f}; scrape p50 {self.scrape_ms(0.5):.0f} ms, p99 "
            f"{self.scrape_ms(0.99):.0f} ms of {len(self.scrapes_s)}; {self.resident_bytes / 2**20:.0f} MiB, "
            f"{self.cpu_s / self.seconds * 100:.0f} % of a core"
        )


def main() -> int:
    """Print one line for each run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=10_000, help="a second")
    parser.add_argument("--queue-pairs", type=int, default=2_000)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--search", action="store_true")
    parser.add_argument("--serve", type=int, metavar="QUEUE_PAIRS", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve is not None:
        return _serve(options.serve)
    rate = options.records
    while True:
        found = run(rate, options.queue_pairs, options.seconds)
        print(found.line(), flush=True)
        if not options.search or found.refused:
            return 0
        rate = int(rate * 1.4)


def run(records_s: int, queue_pairs: int, seconds: float) -> Load:
    """Run the exporter under this load."""
    with ExitStack() as ending:
        folder = Path(ending.enter_context(tempfile.TemporaryDirectory()))
        _write_host(folder / "root")
        (folder / "exporter.toml").write_text(_CONFIG)
        bodies = _bodies(records_s, seconds)
        paths = (ROOT, ROOT / "exporters", ROOT / "probes")
        command = [sys.executable, "-m", "benchmarks.exporter_load", "--serve", str(queue_pairs)]
        log = ending.enter_context((folder / "log").open("wb"))
        environ = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, paths))}
        process = subprocess.Popen(command, cwd=folder, stderr=log, env=environ)
        ending.callback(process.wait)
        ending.callback(process.kill)
        while not (match := re.search(r"otlp_http on (\S+)", (folder / "log").read_text())):
            if process.poll() is not None:
                raise RuntimeError((folder / "log").read_text())
            time.sleep(0.05)
        address = (folder / "address").read_text().strip()
        _scrape(address)
        return _loaded(address, match[1], bodies, records_s, seconds)


def _loaded(address: str, otlp: str, bodies: list[bytes], records_s: int, seconds: float) -> Load:
    before = _scrape(address)
    start_s = time.monotonic()
    sent = [0] * SENDERS
    senders = [
        threading.Thread(target=_send, args=(otlp, bodies[one::SENDERS], sent, one, start_s, records_s / SENDERS))
        for one in range(SENDERS)
    ]
    for one in senders:
        one.start()
    choose = random.Random(1)
    times = []
    while time.monotonic() < start_s + seconds:
        time.sleep(choose.uniform(0.21, 0.29))
        times.append(_timed(address))
    for one in senders:
        one.join()
    elapsed_s = time.monotonic() - start_s
    middle = _scrape(address)
    time.sleep(7)
    after = _scrape(address)
    accepted = sum(sent)

    def grown(series: str, later: dict[str, float] = after) -> float:
        return later.get(series, 0.0) - before.get(series, 0.0)

    return Load(
        offered=len(bodies) * RECORDS,
        seconds=elapsed_s,
        read=grown('kvdiag_records_spans_total{result="read"}'),
        refused=len(bodies) * RECORDS - accepted,
        lost=accepted - grown('kvdiag_records_spans_total{result="read"}'),
        scrapes_s=times,
        cpu_s=grown("kvdiag_exporter_cpu_seconds_total", middle),
        resident_bytes=middle["kvdiag_exporter_resident_memory_bytes"],
    )


def _timed(address: str) -> float:
    """Return how long a scrape takes in the form that Prometheus asks for, OpenMetrics with exemplars."""
    start_s = time.perf_counter()
    status, _ = get(address, accept=ACCEPT)
    assert status == 200
    return time.perf_counter() - start_s


def _scrape(address: str) -> dict[str, float]:
    status, text = get(address)
    assert status == 200
    return parse(text)


def _send(address: str, bodies: list[bytes], sent: list[int], place: int, start_s: float, records_s: float) -> None:
    """Post the bodies at a steady pace; one that is refused is not sent again."""
    connection = http.client.HTTPConnection(address, timeout=30)
    for number, body in enumerate(bodies):
        time.sleep(max(0.0, start_s + number * RECORDS / records_s - time.monotonic()))
        with suppress(OSError, http.client.HTTPException):
            connection.request("POST", "/v1/traces", body, {"Content-Type": "application/x-protobuf"})
            answer = connection.getresponse()
            answer.read()
            sent[place] += RECORDS * (answer.status == 200)


def _bodies(records_s: int, seconds: float) -> list[bytes]:
    each = RECORDS // 3
    count = int(records_s * seconds / RECORDS)
    return [export(range(1 + number * each, 1 + (number + 1) * each)) for number in range(count)]


def _write_host(root: Path) -> None:
    for number in range(PORTS):
        port = root / f"sys/class/infiniband/mlx5_{number}/ports/1"
        for folder in ("counters", "hw_counters"):
            (port / folder).mkdir(parents=True)
            for counter in range(COUNTERS // 2):
                (port / folder / f"counter_{counter}").write_text(f"{counter}\n")
        (port / "counters/port_xmit_data").write_text("1\n")
        (port / "state").write_text("4: ACTIVE\n")
        (port / "rate").write_text("400 Gb/sec (4X NDR)\n")


def _serve(queue_pairs: int) -> int:
    """Run the exporter with a recorded RDMA netlink conversation of so many queue pairs in place of the kernel's."""
    from kvdiag_exporters import app, config
    from kvdiag_exporters.collectors.base import Setup
    from tests.netlink import CAPTURE, Replay

    asked = json.loads(CAPTURE.read_text())["asked"]
    for one in asked:
        if one["command"] == "RES_QP_GET" and one["attributes"].startswith("0800010000"):  # rxe0, five of them
            one["payloads"] *= queue_pairs // 5
        if one["command"] == "RES_GET":
            count = queue_pairs.to_bytes(8, "little").hex()
            one["payloads"][0] = re.sub("(?<=717000000c001200).{16}", count, one["payloads"][0])
    vars(app)["Setup"] = lambda **given: Setup(**given, netlink=Replay(asked))
    app.run(config.load(Path("exporter.toml")), lambda line: print(line, file=sys.stderr, flush=True))
    return 0


if __name__ == "__main__":
    sys.exit(main())
