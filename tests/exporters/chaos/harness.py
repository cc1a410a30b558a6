"""Runs the exporter under faults drawn from a seed, judges every scrape, and what is left at the end."""

import json
import os
import random
import re
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

from prometheus_client.openmetrics.parser import text_string_to_metric_families

from tests.exporters.chaos import faults
from tests.exporters.chaos.clients import Sender
from tests.exporters.chaos.engine import get
from tests.exporters.chaos.oracle import Oracle, parse
from tests.exporters.chaos.world import STEP_S, World

ROOT = Path(__file__).parents[3]
INTERVAL_S = 0.2
SCRAPE_EVERY_S = 0.4
REQUESTS_S = 20.0
RECORDS_S = 20.0
START_WITHIN_S = 60.0
REST_S = 4.0
"""At the end without a fault: longer than any limit after which the exporter lets go of something, but connections'."""
_ADDRESS = re.compile(r"(otlp_http|otlp_grpc) on ([\d.]+:\d+)")


@dataclass
class Size:
    """What the process holds."""

    resident_bytes: int
    files: int
    threads: int


@dataclass
class Result:
    """What came of a run; `complaints` is empty where all was as it must be."""

    seed: int
    scrapes: int = 0
    drawn: Counter[str] = field(default_factory=Counter)
    complaints: dict[str, str] = field(default_factory=dict)
    slowest_s: float = 0.0
    before: Size | None = None
    half: Size | None = None
    most: Size | None = None
    after: Size | None = None
    records: str = ""


def _open_metrics(text: str) -> None:
    for _ in text_string_to_metric_families(text):  # type: ignore[no-untyped-call]
        pass


def size_of(pid: int) -> Size:
    """Return what a process holds now."""
    status = Path(f"/proc/{pid}/status").read_text()
    resident = re.search(r"VmRSS:\s+(\d+) kB", status)
    threads = re.search(r"Threads:\s+(\d+)", status)
    assert resident is not None
    assert threads is not None
    return Size(int(resident[1]) * 1024, len(os.listdir(f"/proc/{pid}/fd")), int(threads[1]))  # noqa: PTH208


class Harness:
    """One run in a folder."""

    def __init__(self, folder: Path, seed: int, drawn_from: Sequence[faults.Fault] = faults.ALL) -> None:
        self.world = World(folder, INTERVAL_S)
        self.result = Result(seed)
        self.oracle = Oracle(self.world, 2 * INTERVAL_S)
        self._drawn_from = drawn_from
        self._choose = random.Random(seed)
        self._addresses: dict[str, str] = {}
        self._process: subprocess.Popen[bytes] | None = None
        self._active: Counter[str] = Counter()
        self._stop = threading.Event()
        self._judging = threading.Lock()
        self._appended = 0

    def run(self, seconds: float, most_at_once: int = 3) -> Result:
        """Inject faults for so long, then rest, end the exporter and judge what it recorded."""
        with ExitStack() as ending:
            self.world.build()
            ending.callback(self.world.close)
            self._start(ending)
            sender = Sender(self._addresses["otlp_http"], self._addresses["otlp_grpc"], REQUESTS_S)
            self._learn()
            self.oracle.counted['kvdiag_records_spans_total{result="read"}'] = sender.read_between
            sender.start()
            threads = [threading.Thread(target=one, daemon=True) for one in (self._grow, self._scrape_on, self._append)]
            for one in threads:
                one.start()
            self._warm_up()
            self.result.before = size_of(self._pid)
            end_s = time.monotonic() + seconds
            slots = [
                threading.Thread(target=self._inject, args=(end_s, random.Random(self._choose.random())))
                for _ in range(most_at_once)
            ]
            for one in slots:
                one.start()
            time.sleep(seconds / 2)
            self.result.half = size_of(self._pid)
            for one in slots:
                one.join()
            sender.stop()
            time.sleep(REST_S)
            self._stop.set()
            for one in threads:
                one.join()
            time.sleep(3 * INTERVAL_S)
            self.result.after = size_of(self._pid)
            self._judge_end(sender)
        self.result.complaints = self.oracle.complaints
        self.result.scrapes = self.oracle.checked
        return self.result

    @property
    def _pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def _start(self, ending: ExitStack) -> None:
        world = self.world
        log = ending.enter_context((world.folder / "log").open("wb"))
        environ = os.environ | {
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "exporters"), str(ROOT / "probes")])
        }
        module = "tests.exporters.chaos.launch"
        command = [sys.executable, "-m", module, str(world.offset_file), "exporter", "--config", str(world.config)]
        self._process = subprocess.Popen(command, stderr=log, env=environ, cwd=world.folder)
        ending.callback(self._kill)
        until_s = time.monotonic() + START_WITHIN_S
        while not (world.folder / "address").exists():
            told = (world.folder / "log").read_text()
            if self._process.poll() is not None or time.monotonic() > until_s:
                raise RuntimeError(f"the exporter did not start: {told}")
            time.sleep(0.05)
        while len(self._addresses) < 3:
            self._addresses = dict(_ADDRESS.findall((world.folder / "log").read_text()))
            self._addresses["metrics"] = (world.folder / "address").read_text().strip()
            time.sleep(0.02)

    def _kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def _learn(self) -> None:
        """Look at the healthy exporter, at factor one and at three."""
        time.sleep(3 * INTERVAL_S)
        _, first = get(self._addresses["metrics"])
        self.world.advance(3)
        for engine in self.world.engines.values():
            engine.advance(3)
        time.sleep(3 * INTERVAL_S)
        _, later = get(self._addresses["metrics"])
        self.oracle.learn(parse(first), parse(later), 3)

    def _warm_up(self) -> None:
        """Have everything once that may be kept: as many threads and buffers as a crowd needs."""
        threads = [threading.Thread(target=self.scrape, args=("to warm up",)) for _ in range(100)]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
        time.sleep(1.0)

    def scrape(self, when: str) -> None:
        """Scrape once and judge the answer."""
        start_s = time.monotonic()
        try:
            status, text = get(self._addresses["metrics"], timeout_s=40.0)
        except OSError as error:
            self.oracle.complain("no answer", f"{self._when(when)}: {error!r}")
            return
        end_s = time.monotonic()
        with self._judging:
            if not self.world.troubles.any("scrapes", start_s, end_s):
                self.result.slowest_s = max(self.result.slowest_s, end_s - start_s)
            if status != 200:
                self.oracle.complain(f"status {status}", self._when(when))
                return
            self.oracle.check(text, start_s, end_s, self._when(when))

    def _when(self, when: str) -> str:
        active = ", ".join(sorted(self._active.elements())) or "no fault"
        return f"{when} ({active})"

    def _scrape_on(self) -> None:
        number = 0
        while not self._stop.wait(SCRAPE_EVERY_S):
            self.scrape("scraped")
            number += 1
            if number % 5 == 0:
                self._look_around()
            with suppress(OSError, AssertionError):
                now = size_of(self._pid)
                most = self.result.most or now
                self.result.most = Size(
                    max(now.resident_bytes, most.resident_bytes),
                    max(now.files, most.files),
                    max(now.threads, most.threads),
                )

    def _look_around(self) -> None:
        """Read the other endpoints: each must answer with what can be read."""
        for path, read in (("/healthz", json.loads), ("/api/records", json.loads), ("/metrics", _open_metrics)):
            try:
                status, text = get(self._addresses["metrics"], path, 40.0, "application/openmetrics-text")
                read(text)
            except Exception as error:
                self.oracle.complain(f"unreadable {path}", f"{self._when('asked')}: {error!r}")
                continue
            if status != 200:
                self.oracle.complain(f"status {status} of {path}", self._when("asked"))

    def _grow(self) -> None:
        while not self._stop.wait(STEP_S):
            self.world.advance()
            for engine in self.world.engines.values():
                engine.advance(engine.factor.now + 1)

    def _append(self) -> None:
        """Append records of requests, now and then something that is none, and put the file aside sometimes."""
        path = self.world.folder / "records.jsonl"
        choose = random.Random(self.result.seed)
        next_s = time.monotonic() + 2
        while not self._stop.wait(1 / RECORDS_S):
            number = self._appended
            row = {"request_id": f"file-{number}", "arrival_s": time.time(), "ttft_s": 0.5, "queue_s": 0.25}
            line = json.dumps(row).encode() + b"\n"
            if time.monotonic() > next_s:  # never twice before the exporter can have seen the first
                path.rename(path.with_suffix(".old"))
                next_s = time.monotonic() + choose.uniform(10, 15)
            with path.open("ab", buffering=0) as file:
                if choose.random() < 0.1:
                    file.write(choose.randbytes(50).replace(b"\n", b"") + b"\n")
                half = choose.randrange(len(line))
                file.write(line[:half])
                file.write(line[half:])
            self._appended += 1

    def _inject(self, end_s: float, choose: random.Random) -> None:
        """Draw one fault after another."""
        while time.monotonic() < end_s:
            fault = choose.choice(self._drawn_from)
            name = faults.name_of(fault)
            target = faults.Target(self.world, self._pid, self._addresses, choose, self.scrape)
            if self._active[name]:
                continue
            self._active[name] += 1
            self.result.drawn[name] += 1
            try:
                with fault(target):
                    time.sleep(choose.uniform(0.3, 2.5))
            except Exception as error:
                self.oracle.complain("harness", f"{name}: {error!r}")
            finally:
                self._active[name] -= 1
                self._active = +self._active
            time.sleep(choose.uniform(0.0, 1.0))

    def _judge_end(self, sender: Sender) -> None:
        """Judge the counts, the size of the process, its end, and the bundles."""
        assert self._process is not None
        _, text = get(self._addresses["metrics"])
        found = parse(text)
        self._judge_counts(found, sender)
        self._judge_size()
        self._process.terminate()
        try:
            code = self._process.wait(20)
        except subprocess.TimeoutExpired:
            code = -1
        lost = found["kvdiag_recorder_lost_lines_total"]
        log = (self.world.folder / "log").read_text(errors="replace")
        if code not in ((3,) if lost else (0, 3)):
            self.oracle.complain("end", f"exit code {code}, {lost:g} lines lost: {log[-400:]}")
        if "Traceback" in log:
            self.oracle.complain("traceback", log[log.index("Traceback") :][:1500])
        self._judge_bundles()

    def _judge_counts(self, found: dict[str, float], sender: Sender) -> None:
        given = found["kvdiag_records_read_total"]
        joined = found['kvdiag_records_requests_total{result="joined"}']
        if not sender.taken <= joined <= sender.taken + sender.open:
            self.oracle.complain("joined", f"{joined:g} requests joined, {sender.taken} sent and {sender.open} unsure")
        if given != self._appended + joined:
            self.oracle.complain(
                "read", f"{given:g} records given on, {self._appended} written to files, {joined:g} joined"
            )
        self.result.records = (
            f"{sender.taken} requests taken by OTLP, {sender.refused} refused, {joined:g} joined; "
            f"{self._appended} more in files, {given:g} given on; "
            f"{found['kvdiag_recorder_lost_lines_total']:g} lines of bundles lost to full disks and removals"
        )

    def _judge_size(self) -> None:
        before, after = self.result.before, self.result.after
        assert before is not None
        assert after is not None
        if after.threads > before.threads + 4:
            self.oracle.complain("threads", f"{before.threads} at first, {after.threads} at rest")
        if after.files > before.files + 8:
            self.oracle.complain("files", f"{before.files} open at first, {after.files} at rest")
        if after.resident_bytes > before.resident_bytes * 1.5 + (32 << 20):
            self.oracle.complain("memory", f"{before.resident_bytes >> 20} MiB at first, {after.resident_bytes >> 20}")

    def _judge_bundles(self) -> None:
        seen: Counter[str] = Counter()
        for path in (self.world.folder / "bundle").rglob("*.jsonl"):
            for line in path.read_bytes().splitlines():
                try:
                    row = json.loads(line)
                except ValueError:
                    self.oracle.complain("bundle", f"{path.name}: {line[:80]!r} is no line of a bundle")
                    continue
                if path.name == "requests.jsonl":
                    seen[row["request_id"]] += 1
        twice = [one for one, count in seen.items() if count > 1]
        if twice:
            self.oracle.complain("recorded twice", f"{len(twice)} requests, for example {twice[0]}")
