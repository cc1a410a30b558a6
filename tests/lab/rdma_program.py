"""What the `rdma` program says, as the measure of what kvdiag reads."""

import json
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from tests.lab.machine import Machine


@dataclass
class Objects:
    """Live objects by the process that holds them."""

    queue_pairs: Counter[int] = field(default_factory=Counter)
    regions: Counter[int] = field(default_factory=Counter)
    region_bytes: Counter[int] = field(default_factory=Counter)


def objects_by_process(machine: Machine) -> Objects:
    """Return what the rdma program tells of a machine; the ids that it gives are those of threads."""
    found = Objects()
    ask = "rdma -j resource show qp; echo; rdma -j resource show mr; echo; grep -H Tgid: /proc/[0-9]*/task/*/status"
    pairs, regions, *status = (line for line in machine.run(ask, check=True).stdout.splitlines() if line)
    processes = {int(line.split("/")[4]): int(line.split()[-1]) for line in status}
    for row in json.loads(pairs):
        if "pid" in row:
            found.queue_pairs[processes[row["pid"]]] += 1
    for row in json.loads(regions):
        if "pid" in row:
            found.regions[processes[row["pid"]]] += 1
            found.region_bytes[processes[row["pid"]]] += row["mrlen"]
    return found


def check_against_rdma(read: dict[str, Any], said: dict[str, Any], threads: dict[str, list[Any]]) -> None:
    """Compare what was read with what the rdma program said of the same objects."""

    def process(row: dict[str, Any]) -> str:
        return str(threads[str(row["pid"])][0]) if "pid" in row else "none"

    def plain(pid: str) -> str:
        return pid if pid.isdecimal() else "none"

    assert read["summaries"] == [
        {"device": row["ifname"], **{k: v for k, v in row.items() if k not in ("ifindex", "ifname")}}
        for row in said["summary"]
    ]
    assert sorted([device, lqpn, kind, state, plain(pid)] for device, lqpn, kind, state, pid in read["qp"]) == sorted(
        [row["ifname"], row["lqpn"], row["type"], row["state"], process(row)] for row in said["qp"]
    )
    # The rdma program has no process for what a thread that has ended made; kvdiag finds it through the PD.
    owned = {(row["ifname"], row["mrn"]): process(row) for row in said["mr"] if "pid" in row or "comm" in row}
    assert {(device, mrn): plain(pid) for device, mrn, _, pid in read["mr"] if (device, mrn) in owned} == owned
    assert sorted([device, mrn, length] for device, mrn, length, _ in read["mr"]) == sorted(
        [row["ifname"], row["mrn"], row["mrlen"]] for row in said["mr"]
    )
    for kind in ("pd", "cq", "cm_id"):
        assert sum(count for _, name, _, count in read["others"] if name == kind) == len(said[kind])
