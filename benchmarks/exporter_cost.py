"""What a scrape costs, beside prometheus-node-exporter's infiniband collector on the same tree, in one run.

    python benchmarks/exporter_cost.py [--node-exporter PATH] [--scrapes N] [--ports 8]

Prints CPU time per scrape, resident memory and scrape times of both, and ends with 1 where kvdiag's CPU is more than
three times the Go exporter's or its memory more than 80 MB. `prometheus-node-exporter` is the Debian package's name.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

MOST_CPU_RATIO, MOST_RESIDENT_MB = 3.0, 80.0
PMA = (
    "VL15_dropped",
    "excessive_buffer_overrun_errors",
    "link_downed",
    "link_error_recovery",
    "local_link_integrity_errors",
    "multicast_rcv_packets",
    "multicast_xmit_packets",
    "port_rcv_constraint_errors",
    "port_rcv_data",
    "port_rcv_errors",
    "port_rcv_packets",
    "port_rcv_remote_physical_errors",
    "port_rcv_switch_relay_errors",
    "port_xmit_constraint_errors",
    "port_xmit_data",
    "port_xmit_discards",
    "port_xmit_packets",
    "port_xmit_wait",
    "symbol_error",
    "unicast_rcv_packets",
    "unicast_xmit_packets",
)
HW = (
    "duplicate_request",
    "implied_nak_seq_err",
    "lifespan",
    "local_ack_timeout_err",
    "np_cnp_sent",
    "np_ecn_marked_roce_packets",
    "out_of_buffer",
    "out_of_sequence",
    "packet_seq_err",
    "req_cqe_error",
    "req_cqe_flush_error",
    "req_remote_access_errors",
    "req_remote_invalid_request",
    "resp_cqe_error",
    "resp_cqe_flush_error",
    "resp_local_length_error",
    "resp_remote_access_errors",
    "rnr_nak_retry_err",
    "roce_adp_retrans",
    "roce_adp_retrans_to",
    "roce_slow_restart",
    "roce_slow_restart_cnps",
    "roce_slow_restart_trans",
    "rp_cnp_handled",
    "rp_cnp_ignored",
    "rx_atomic_requests",
    "rx_dct_connect",
    "rx_icrc_encapsulated",
    "rx_read_requests",
    "rx_write_requests",
)
COUNTERS = 80
INTERVAL_S = 0.05
"""kvdiag's least interval: callers within it share a collection, so scrapes are further apart."""


@dataclass(frozen=True, slots=True)
class Cost:
    name: str
    cpu_ms: float
    resident_mb: float
    median_ms: float
    p99_ms: float
    bytes: int


def write_tree(root: Path, ports: int) -> None:
    """Write `ports` one-port mlx5 devices with COUNTERS counters each, the last of them of names to come."""
    names = [*HW, *(f"rx_future_event_{number}" for number in range(COUNTERS - len(PMA) - len(HW)))]
    for number in range(ports):
        device = root / f"sys/class/infiniband/mlx5_{number}"
        port = device / "ports/1"
        for folder, found in (("counters", PMA), ("hw_counters", names)):
            (port / folder).mkdir(parents=True)
            for place, name in enumerate(found):
                (port / folder / name).write_text(f"{number * 1000 + place}\n")
        for name, text in (("board_id", "MT_0000000838"), ("fw_ver", "28.39.1002"), ("hca_type", "MT4129")):
            (device / name).write_text(text + "\n")
        for name, text in (
            ("state", "4: ACTIVE"), ("phys_state", "5: LinkUp"), ("rate", "400 Gb/sec (4X NDR)"),
            ("link_layer", "InfiniBand"), ("lid", "0x1"),
        ):  # fmt: skip
            (port / name).write_text(text + "\n")


def cpu_s(pid: int) -> float:
    """Return user and system time of a process (proc(5), fields 14 and 15 of stat)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_mb(pid: int) -> float:
    line = next(one for one in Path(f"/proc/{pid}/status").read_text().splitlines() if one.startswith("VmRSS:"))
    return int(line.split()[1]) * 1024 / 1e6


def measure(name: str, command: Sequence[str], url: str, scrapes: int) -> Cost:
    """Start a program, scrape it a few times to warm up, then `scrapes` times, and end it."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline_s = time.monotonic() + 60
        while True:
            try:
                body = scrape(url)
                break
            except OSError:
                if process.poll() is not None or time.monotonic() > deadline_s:
                    sys.exit(f"{name} does not serve {url}")
                time.sleep(0.1)
        for _ in range(10):
            scrape(url)
        before_s = cpu_s(process.pid)
        times = []
        for _ in range(scrapes):
            time.sleep(1.5 * INTERVAL_S)
            start_s = time.perf_counter()
            body = scrape(url)
            times.append(time.perf_counter() - start_s)
        used_s = cpu_s(process.pid) - before_s
        times.sort()
        return Cost(
            name,
            used_s / scrapes * 1e3,
            resident_mb(process.pid),
            times[len(times) // 2] * 1e3,
            times[min(len(times) - 1, int(len(times) * 0.99))] * 1e3,
            len(body),
        )
    finally:
        process.terminate()
        process.wait(10)


def scrape(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=30) as answer:
        body: bytes = answer.read()
        return body


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--node-exporter", default=shutil.which("prometheus-node-exporter"))
    parser.add_argument("--scrapes", type=int, default=200)
    parser.add_argument("--ports", type=int, default=8)
    asked = parser.parse_args()
    if asked.node_exporter is None:
        sys.exit("prometheus-node-exporter is not installed; install the Debian package or give --node-exporter PATH")
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        write_tree(root, asked.ports)
        config = root / "exporter.toml"
        config.write_text(f'listen = "127.0.0.1:19846"\nroot = "{root}"\ninterval_s = {INTERVAL_S}\n')
        found = [
            measure(
                "node_exporter",
                [
                    asked.node_exporter, f"--path.sysfs={root}/sys", "--collector.disable-defaults",
                    "--collector.infiniband", "--web.listen-address=127.0.0.1:19847",
                ],
                "http://127.0.0.1:19847/metrics",
                asked.scrapes,
            ),
            measure(
                "kvdiag exporter",
                [sys.executable, "-m", "kvdiag", "exporter", "--config", str(config)],
                "http://127.0.0.1:19846/metrics",
                asked.scrapes,
            ),
        ]  # fmt: skip
    print(f"{asked.ports} ports × {COUNTERS} counters, {asked.scrapes} scrapes each")
    print(f"{'':16} {'CPU/scrape':>11} {'resident':>9} {'median':>8} {'p99':>8} {'answer':>9}")
    for one in found:
        print(
            f"{one.name:16} {one.cpu_ms:8.2f} ms {one.resident_mb:6.1f} MB {one.median_ms:5.1f} ms "
            f"{one.p99_ms:5.1f} ms {one.bytes / 1e3:6.1f} kB"
        )
    ratio = found[1].cpu_ms / found[0].cpu_ms
    print(f"CPU ratio {ratio:.2f} (at most {MOST_CPU_RATIO:g}), memory at most {MOST_RESIDENT_MB:g} MB")
    return int(ratio > MOST_CPU_RATIO or found[1].resident_mb > MOST_RESIDENT_MB)


if __name__ == "__main__":
    sys.exit(main())
