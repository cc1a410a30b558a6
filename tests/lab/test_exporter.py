"""The exporter on a kernel with RDMA: what an engine holds is counted as that engine's."""

import json
import sys
from typing import Any

import pytest

from tests.lab.topology import Wire

pytestmark = pytest.mark.lab


def test_objects_and_ports_are_those_of_the_machine(lab_node: Wire) -> None:
    machine = lab_node.a.machine
    holder = machine.spawn("echo $$; exec /usr/bin/python3 tests/lab/netlink_holder.py rxe0 3", stdin=True)
    pid = int(holder.wait_for(r"^(\d+)$", 60)[1])
    holder.wait_for("^ready", 60)
    config = f'[[engines]]\nname = "demo"\npid = {pid}\n'
    machine.put(config.encode(), "/tmp/exporter.toml")
    command = [sys.executable, "-m", "kvdiag", "exporter", "--config", "/tmp/exporter.toml", "--format", "json"]
    document = json.loads(machine.run(command, 60, check=True).stdout)
    holder.write(b"\n")
    assert holder.wait(20).rc == 0
    assert all(one["success"] for one in document["collectors"])

    def values(name: str, **labels: str) -> list[Any]:
        return [
            one["value"]
            for one in document["samples"]
            if one["name"] == name and labels.items() <= one["labels"].items()
        ]

    assert values("kvdiag_rdma_queue_pairs", engine="demo", device="rxe0", type="RC", state="ERR") == [1]
    assert values("kvdiag_rdma_queue_pairs", engine="demo", device="rxe0", type="RC", state="RESET") == [2]
    assert values("kvdiag_rdma_engine_objects", engine="demo", device="rxe0", kind="mr") == [3]
    assert values("kvdiag_rdma_memory_region_bytes", engine="demo") == [4096 + 8192 + 65536]
    assert values("kvdiag_rdma_port_up") == [1, 1]
    assert values("kvdiag_rdma_port_transmit_packets_total", device="rxe0") == [lab_node.a.counters()["sent_pkts"]]
    assert values("kvdiag_rdma_port_transmit_bytes_total") == []  # rxe counts no bytes
    (pinned,) = values("kvdiag_engine_pinned_memory_bytes", engine="demo")
    assert pinned >= 4096 + 8192 + 65536
    assert values("kvdiag_netdev_up", device="v0") == [1]
