"""A host with two RoCE ports, one prefill engine with a child, NIXL stores and a ring, and records: all from files."""

import json
import shutil
from pathlib import Path

from kvdiag.sources.base import Context
from kvdiag_exporters.collectors.base import Engine, Setup
from tests.netlink import CAPTURE, Replay
from tests.trees import write_tree

NIXL = Path(__file__).parents[1] / "fixtures/nixl"
STAT = "{pid} ({name}) S {parent} 1 1 0 -1 0 0 0 0 0 {user} {system} {cuser} {csystem} 20 0 {threads} 0 {start} 0 0"

TREE = f"""
base roce-bond
proc/stat = cpu 1 2 3\\nbtime 1700000000
proc/net/dev = x\\nx\\n lo: 10 1 0 0 0 0 0 0 10 1 0 0 0 0 0 0\\n eth0: 900 9 1 2 0 0 0 0 800 8 3 4 0 0 0 0\\n veth1: 1 1 0 0 0 0 0 0 1 1 0 0 0 0 0 0
proc/net/snmp = Tcp: RetransSegs InSegs\\nTcp: 7 100
proc/net/netstat = IpExt: InOctets\\nIpExt: 910
proc/self/ns/net -> net:[4026531840]
proc/121/stat = {STAT.format(pid=121, name="python3 (a)", parent=1, user=200, system=100, cuser=50, csystem=0, threads=3, start=5000)}
proc/121/status = Name:\tpython3\\nTgid:\t121\\nPPid:\t1\\nVmLck:\t 8 kB\\nVmPin:\t 1024 kB\\nVmRSS:\t 2048 kB
proc/121/comm = python3
proc/121/limits = Max locked memory         8388608              8388608              bytes
proc/121/fd/0 = x
proc/121/fd/1 = x
proc/121/task/121/children = 130
proc/121/net/dev = x\\nx\\n eth0: 5000 50 0 0 0 0 0 0 6000 60 0 0 0 0 0 0
proc/121/net/snmp = Tcp: RetransSegs\\nTcp: 3
proc/121/net/netstat = IpExt: InOctets\\nIpExt: 4900
proc/121/ns/net -> net:[4026532900]
proc/121/root/sys/class/net/eth0/speed = 25000
proc/121/root/sys/class/net/eth0/operstate = up
proc/122/status = Name:\tpython3\\nTgid:\t121
proc/130/stat = {STAT.format(pid=130, name="worker", parent=121, user=10, system=5, cuser=0, csystem=0, threads=1, start=6000)}
proc/130/status = Name:\tworker\\nTgid:\t130\\nPPid:\t121\\nVmLck:\t 0 kB\\nVmPin:\t 0 kB\\nVmRSS:\t 1024 kB
proc/130/task/130/children =
proc/130/fd/
"""  # noqa: E501  (files as they are)

RECORDS = (
    {"request_id": "a", "arrival_s": 1.0, "ttft_s": 0.5, "queue_s": 0.2, "prefill_s": 0.1, "wire_s": 0.2},
    {
        "request_id": "b",
        "arrival_s": 2.0,
        "ttft_s": 2.0,
        "queue_s": 0.0,
        "wire_s": 0.004,
        "bytes": 5e6,
        "descriptors": 80,
    },
    {"request_id": "b", "arrival_s": 2.0, "ttft_s": 9.0},
    {"request_id": "c", "arrival_s": 3.0, "ttft_s": 1.0, "queue_s": -0.5},
    {"arrival_s": 4.0},
)
PAIR = {"prefill_node": "prefill-0", "decode_node": "decode-0", "direction": "pull"}


class StillClock:
    """A clock that a test moves."""

    now_s = 1000.0

    def wall_s(self) -> float:
        return 1.7e9 + self.now_s

    def monotonic_s(self) -> float:
        return self.now_s


def write_host(folder: Path) -> Setup:
    """Write everything below `folder` and return a setup that reads it."""
    write_tree(TREE, folder / "root")
    telemetry = folder / "nixl"
    telemetry.mkdir()
    shutil.copy(NIXL / "rings/1.5.0/prefill-0", telemetry)
    for path in (NIXL / "stores/two-processes").iterdir():
        shutil.copy(path, telemetry)
    records = folder / "requests.jsonl"
    records.write_text("".join(json.dumps({**row, **PAIR}) + "\n" for row in RECORDS))
    engine = Engine(
        name="demo", node="prefill-0", role="prefill", pid=121, nixl_telemetry=telemetry, records=records
    )  # fmt: skip
    return Setup(
        node="host-a",
        engines=(engine,),
        context=Context(root=folder / "root", live=False, clock=StillClock()),
        netlink=Replay(json.loads(CAPTURE.read_text())["asked"]),
    )
