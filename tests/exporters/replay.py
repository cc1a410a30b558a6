"""A host that is alive: a fixture tree whose counters move, engines' recorded metrics that grow, records that arrive.

Everything is files and one small HTTP server, so that a real `kvdiag exporter` can watch it. `python -m
tests.exporters.replay FOLDER` keeps one going until Ctrl-C.
"""

import json
import random
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from tests.trees import write_tree

FIXTURES = Path(__file__).parents[1] / "fixtures"
STAT = "121 (python3) S 1 1 1 0 -1 0 0 0 0 0 200 100 50 0 20 0 3 0 5000 0 0"
TREE = f"""
base dgx-8x-infiniband
proc/stat = cpu 1 2 3\\nbtime 1700000000
proc/net/snmp = Tcp: RetransSegs InSegs\\nTcp: 7 100
proc/net/netstat = IpExt: InOctets OutOctets\\nIpExt: 910 910
proc/self/ns/net -> net:[4026531840]
proc/121/stat = {STAT}
proc/121/status = Name:\tpython3\\nTgid:\t121\\nPPid:\t1\\nVmLck:\t 8 kB\\nVmPin:\t 62914560 kB\\nVmRSS:\t 62914560 kB
proc/121/comm = python3
proc/121/limits = Max locked memory         68719476736          68719476736          bytes
proc/121/fd/0 = x
proc/121/task/121/children =
proc/121/ns/net -> net:[4026531840]
"""
PORTS = tuple(f"mlx5_{number}" for number in range(8))
_COUNTERS = {
    "counters/port_xmit_data": 4.2e9, "counters/port_rcv_data": 0.3e9, "counters/port_xmit_packets": 4e6,
    "counters/port_rcv_packets": 1e6, "hw_counters/packet_seq_err": 0.0, "hw_counters/out_of_sequence": 0.0,
    "hw_counters/local_ack_timeout_err": 0.0, "hw_counters/rp_cnp_handled": 40.0, "hw_counters/out_of_buffer": 0.0,
    "hw_counters/np_ecn_marked_roce_packets": 60.0,
}  # fmt: skip
"""What a port's counters grow by in a second; data in words of four bytes."""
_SICK = {"hw_counters/packet_seq_err": 4e3, "hw_counters/local_ack_timeout_err": 180.0}
SICK = "mlx5_5"
"""The port that loses packets, and so the pair whose transfers are slow."""
_RECORDED = ("vllm-decode-tbf200-before.txt", "vllm-decode-tbf200-after.txt")
PAIRS = tuple((f"prefill-{one}", f"decode-{two}") for one in range(2) for two in range(3))
SLOW = ("prefill-1", "decode-2")
_REQUESTS_PER_S = 48.0


class LiveHost:
    """Files below `folder`; `step` lets some seconds pass. While it is `sick` one port loses and one pair is slow."""

    sick = True

    def __init__(
        self,
        folder: Path,
        *,
        seed: int = 7,
        requests_per_s: float = _REQUESTS_PER_S,
        wall_s: Callable[[], float] = time.time,
    ) -> None:
        self.folder = folder
        self.root = write_tree(TREE, folder / "root")
        self._random = random.Random(seed)
        self._requests_per_s, self._wall_s = requests_per_s, wall_s
        self._totals: dict[str, float] = {}
        self._requests = 0
        self._share = 0.0
        texts = [(FIXTURES / "engines" / name).read_text() for name in _RECORDED]
        self._before = _values(texts[0])
        self._lines = [line for line in texts[1].splitlines() if line]
        telemetry = folder / "nixl"
        telemetry.mkdir()
        shutil.copy(FIXTURES / "nixl/rings/1.5.0/prefill-0", telemetry)
        for path in (FIXTURES / "nixl/stores/two-processes").iterdir():
            shutil.copy(path, telemetry)
        (folder / "probes.jsonl").write_text(
            "".join(json.dumps(_probe(*pair, wall_s() - 3600)) + "\n" for pair in PAIRS)
        )
        self.step(0.0)

    def config(self, engine_url: str, node: str = "gpu-node-7", engine_node: str = "decode-0") -> str:
        """Return the exporter's configuration but for its address."""
        return (
            f'interval_s = 0.5\nnode = "{node}"\nroot = "{self.root}"\n'
            f'probe_results = ["{self.folder}/probes.jsonl"]\n[records]\nattribution_interval_s = 1\n'
            f'[[engines]]\nname = "vllm-decode"\nnode = "{engine_node}"\nrole = "decode"\npid = 121\n'
            f'metrics = ["{engine_url}"]\nmetrics_interval_s = 0.5\n'
            f'nixl_telemetry = "{self.folder}/nixl"\n'
            f'records = "{self.folder}/requests.jsonl"\nstep_records = "{self.folder}/steps.jsonl"\n'
        )

    def step(self, seconds: float) -> None:
        """Let counters grow, requests arrive and the engine's metrics go on."""
        for device in PORTS:
            for name, rate in _COUNTERS.items():
                grown = rate if device != SICK or not self.sick else _SICK.get(name, 0.1 * rate)
                self._grow(f"{device}/ports/1/{name}", grown * seconds * self._random.uniform(0.8, 1.2))
        self._share += seconds / 30
        rows = [self._request() for _ in range(round(self._requests_per_s * seconds))]
        with (self.folder / "requests.jsonl").open("a") as file:
            file.write("".join(json.dumps(row) + "\n" for row in rows))
        with (self.folder / "steps.jsonl").open("a") as file:
            file.write("".join(json.dumps(_handle(row)) + "\n" for row in rows[:3]))

    def exposition(self) -> str:
        """Return the engine's metrics of now: between those recorded before its traffic and after, and beyond."""
        lines = []
        for line in self._lines:
            if line.startswith("#"):
                lines.append(line)
                continue
            series, _, value = line.rpartition(" ")
            before, after = self._before.get(series, 0.0), float(value)
            counted = any(series.partition("{")[0].endswith(end) for end in ("_total", "_bucket", "_sum", "_count"))
            lines.append(f"{series} {before + (after - before) * self._share}" if counted else line)
        return "\n".join([*lines, ""])

    def _grow(self, place: str, by: float) -> None:
        path = self.root / "sys/class/infiniband" / place
        path.parent.mkdir(parents=True, exist_ok=True)
        start = float(path.read_text()) if path.exists() and path.read_text().strip().isdigit() else 1e6
        self._totals[place] = self._totals.get(place, start) + by
        beside = path.with_name(path.name + ".new")
        beside.write_text(f"{self._totals[place]:.0f}\n")
        beside.replace(path)

    def _request(self) -> dict[str, object]:
        self._requests += 1
        pair = PAIRS[self._requests % len(PAIRS)]
        size = self._random.choice((2e8, 4e8, 8e8))
        speed = 2.5e9 if pair == SLOW and self.sick else 3e10
        wire = size / speed * self._random.uniform(0.9, 1.4)
        stages = {
            "queue_s": self._random.expovariate(30), "prefill_s": size / 4e9 * self._random.uniform(0.9, 1.1),
            "setup_s": 1e-4, "register_s": 2e-4, "post_s": 3e-4, "wire_s": wire, "first_step_s": 0.012,
        }  # fmt: skip
        return {
            "request_id": f"r{self._requests}", "arrival_s": self._wall_s(), "ttft_s": sum(stages.values()), **stages,
            "prefill_node": pair[0], "decode_node": pair[1], "direction": "pull", "bytes": size,
            "descriptors": size / 1e6, "prompt_tokens": size / 1e5, "uncached_tokens": size / 1e5,
        }  # fmt: skip


def _handle(row: dict[str, object]) -> dict[str, object]:
    failed = row["request_id"] == "r1" or str(row["request_id"]).endswith("9")
    return {
        "requests": [],
        "transfers": [
            {
                "source": "vllm step", "node": row["decode_node"], "direction": "read", "backend": "rdma",
                "start_s": row["arrival_s"], "duration_s": row["wire_s"], "post_s": row["post_s"],
                "bytes": row["bytes"], "descriptors": row["descriptors"],
                "error": "NIXL_ERR_REMOTE_DISCONNECT" if failed else "",
            }
        ],
        "windows": [],
    }  # fmt: skip


def _probe(prefill: str, decode: str, time_s: float) -> dict[str, object]:
    """Return what a probe measured while the path was good."""
    sizes = {65536: 1.4e10, 1 << 20: 3.6e10, 16 << 20: 4.6e10}
    return {
        "schema": "kvdiag.probe/1", "version": "0", "host": decode,
        "time": datetime.fromtimestamp(time_s, UTC).isoformat(),
        "settings": {"kind": "bandwidth", "operation": "read", "transport": "rdma"},
        "ends": {"peer": f"{prefill}:7400", "peer_host": prefill, "local_device": "mlx5_0 port 1"},
        "results": [
            {"size_bytes": size, "bytes_per_second": rate, "latency_s": {"p50": size / rate, "p99": 1.3 * size / rate}}
            for size, rate in sizes.items()
        ],
    }  # fmt: skip


def _values(exposition: str) -> dict[str, float]:
    return {
        line.rpartition(" ")[0]: float(line.rpartition(" ")[2])
        for line in exposition.splitlines()
        if line and not line.startswith("#")
    }


@contextmanager
def answering(host: LiveHost) -> Iterator[str]:
    """Serve the host's engine's metrics; yield their address."""

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = host.exposition().encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            return

    with ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/metrics"
        server.shutdown()
    thread.join()


@contextmanager
def alive(folder: Path, step_s: float = 0.5) -> Iterator[str]:
    """Let a host live below `folder`; yield the configuration of an exporter that watches it."""
    host = LiveHost(folder)
    stopped = threading.Event()

    def live() -> None:
        while not stopped.wait(step_s):
            host.step(step_s)

    thread = threading.Thread(target=live, daemon=True)
    with answering(host) as url:
        thread.start()
        try:
            yield host.config(url)
        finally:
            stopped.set()
            thread.join()


def main() -> int:
    """Write the exporter's configuration into the folder and keep its host alive."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    with alive(folder) as config:
        (folder / "exporter.toml").write_text(config)
        try:
            while True:
                time.sleep(3600)
        except KeyboardInterrupt:
            return 0


if __name__ == "__main__":
    sys.exit(main())
